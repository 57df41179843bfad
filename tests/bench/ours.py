"""Our program as the comparisons run it: in process, on the native executor, from a converted model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.base.hardware import read_memory
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.ftw.opening import open_model
from engine.files.sources.upcycle import Upcycle
from engine.measure.bench import Bench
from engine.measure.native_meter import NativeMeter
from engine.memory.blocks import ContextRoom
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.spec.schema import Spec
from engine.text.gguf_tokenizer import write_tokenizer

STEP_TOKENS = 512


def converted(file: Path, folder: Path | None = None, upcycle: Upcycle | None = None) -> Path:
    """The FTW folder made from a GGUF file, beside it where `folder` does not say otherwise; made on first use."""
    folder = folder or file.with_suffix(".ftw")
    if not folder.exists():
        convert(file, folder, write_tokenizer=write_tokenizer, recipe=Recipe(upcycle))
    return folder


class Ours:
    """One model, loaded, with room for `context` tokens."""

    def __init__(self, folder: Path, threads: int, context: int) -> None:
        ftw = open_model(folder)
        program = lower(Spec.from_json(ftw.spec))
        self.executor = NativeExecutor(
            program,
            ftw.dense,
            ftw.banks,
            threads=threads,
            page_tokens=PAGE_TOKENS,
            room=ContextRoom(*(-(-context // PAGE_TOKENS),) * 2, 1),
            max_tokens=STEP_TOKENS,
        )
        self._bench = Bench(self.executor, program, context)
        self._vocab_size = program.vocab_size
        self._threads = threads
        self._meter = NativeMeter(read_memory()[1])

    def read_bandwidth(self) -> float:
        """One plain read loop with as many threads as the model has, GB/s."""
        return self._meter.read_bandwidth(self._threads)

    def prefill_rate(self, tokens: int) -> float:
        """Tokens a second over one prompt, after a warm-up, as llama-bench has one."""
        self._bench.prefill_seconds(tokens)
        return tokens / self._bench.prefill_seconds(tokens)

    def decode_rate(self, tokens: int, depth: int = 0) -> float:
        """Tokens a second over `tokens` steps after `depth` tokens and a warm-up step."""
        self._bench.fill(0, depth)
        self._bench.decode_seconds(depth, 1)
        return tokens / self._bench.decode_seconds(depth, tokens)

    def logits(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Logits [T, vocab] after each token of one sequence."""
        out = np.empty((len(tokens), self._vocab_size), np.float32)
        pages = (np.arange(-(-len(tokens) // PAGE_TOKENS), dtype=np.int32),)
        for start in range(0, len(tokens), STEP_TOKENS):
            stop = min(start + STEP_TOKENS, len(tokens))
            count = stop - start
            out[start:stop] = self.executor.step(
                Batch(
                    tokens=np.ascontiguousarray(tokens[start:stop]),
                    positions=np.arange(start, stop, dtype=np.int32),
                    seq_starts=np.array([0, count], np.int32),
                    page_tables=pages,
                    window_tables=pages,
                    states=np.zeros(1, np.int32),
                    rows=np.arange(count, dtype=np.int32),
                )
            )
        return out
