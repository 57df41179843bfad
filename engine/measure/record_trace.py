"""`freetoken bench MODEL --trace FILE`: a model answers questions, and which experts each token went to is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from engine.base.errors import (
    DoesNotFitError,
    FreetokenError,
    NotFoundError,
    UnsupportedError,
    UsageError,
    is_disk_full,
)
from engine.base.progress import Progress, silent
from engine.base.units import KvBudget
from engine.experts.trace import DECODE, PREFILL, RECORDED, SYNTHETIC, TraceHeader, TraceWriter
from engine.files.ftw.manifest import Manifest
from engine.files.ftw.opening import load_manifest
from engine.measure.steps import OneSequence, chunks
from engine.program.executor import Ints, RoutedExecutor
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.text.text import Text
from engine.worker.loading import load_model
from engine.worker.protocol import Sampling, WorkerConfig
from engine.worker.sampler import Sampler

_ANOTHER = "Name a model whose tokens each choose as many experts."
QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number, and explain how fast it is.",
    "What is photosynthesis, and why does it matter to animals?",
    "Translate into French: The library opens at nine and closes when the last reader has left.",
    "A train leaves at 14:20 and arrives at 17:05 after a stop of 15 minutes. How long did it move?",
    "Three friends share a bill of 84 euros so that one pays twice as much as each of the others. Who pays what?",
    "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
    'Give a JSON object with the fields "city", "country" and "population" for Lisbon.',
    "Is the following claim true, false or open: bats are blind? Give your reasons.",
)
"""Kinds of text that people ask models for; a trace of one kind alone has more locality than they will see."""


@dataclass(frozen=True)
class TracePlan:
    """What to record: `prompts` as a user's messages, and up to `tokens` of the answer to each.

    Answers are sampled from fixed seeds, as conversations are; a greedy one may fall into a loop.
    """

    prompts: Sequence[str] = QUESTIONS
    tokens: int = 64
    temperature: float = 0.7
    top_p: float = 0.9

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UsageError("There is no prompt to record an answer to.")
        if self.tokens < 1:
            raise UsageError(f"An answer has at least 1 token, not {self.tokens}.")


@dataclass(frozen=True)
class Recorded:
    """What a trace holds."""

    header: TraceHeader
    requests: int
    prefill_tokens: int
    decode_tokens: int

    def to_json(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        counts = {name: value for name, value in vars(self).items() if name != "header"}
        return {**vars(self.header), **counts}


def trace_header(name: str, manifest: Manifest) -> TraceHeader:
    """The header of a model's traces. UnsupportedError for a model without experts, or whose tokens differ in number.

    A router that was never trained makes a trace synthetic: one of random weights, or of a dense model that was made
    sparse, whose experts are copies of one another. A provenance says so of models that this program made.
    """
    spec = Spec.from_json(manifest.spec)
    layers = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    shapes = {(moe.experts.count, moe.router.top_k) for moe in layers}
    if len(shapes) != 1:
        what = "no experts" if not shapes else "layers whose numbers of experts differ"
        raise UnsupportedError(f"{name} has {what}, so there is no routing to record.", _ANOTHER)
    if any(moe.zero for moe in layers):
        raise UnsupportedError(
            f"The routers of {name} may choose experts that compute nothing, and a trace has as many for every token.",
            _ANOTHER,
        )
    ((experts, top_k),) = shapes
    untrained = _untrained(manifest.provenance)
    sizes = {bank.record_bytes for bank in manifest.banks}
    return TraceHeader(
        model=f"{name} ({untrained})" if untrained else name,
        moe_layers=len(layers),
        experts=experts,
        top_k=top_k,
        origin=SYNTHETIC if untrained else RECORDED,
        record_bytes=sizes.pop() if len(sizes) == 1 else 0,
    )


def _untrained(provenance: Mapping[str, Any]) -> str:
    """Why the router knows nothing; "" for one that was trained as far as the provenance tells."""
    settings = provenance.get("settings")
    if isinstance(settings, dict) and "upcycle" in settings:
        return "upcycled: copies of one expert behind a random router"
    if isinstance(settings, dict) and settings.get("random"):
        return "random weights"
    return ""


def record_trace(
    folder: Path, path: Path, plan: TracePlan, config: WorkerConfig, progress: Progress = silent
) -> Recorded:
    """Have the model in `folder` answer, and write its routing to `path`, which must not be there.

    `config` says where the model runs. Until the last answer the file is called `PATH.partial`; whoever interrupts
    finds neither, and tokens that were written survive a kill there, until the next run. Errors: those of loading;
    UsageError for a path that is there, NotFoundError for one without a folder; FreetokenError for one that cannot be
    written.
    """
    manifest = load_manifest(folder)
    header = trace_header(folder.name, manifest)
    if path.exists():
        raise UsageError(f"{path} is there already.", "Name another file, or remove it.")
    if not path.parent.is_dir():
        raise NotFoundError(f"There is no folder {path.parent} for {path.name}.", "Make it, or name another file.")
    text = Text.load(folder)
    prompts = [_ids(text, prompt) for prompt in plan.prompts]
    context = max(len(ids) for ids in prompts) + plan.tokens
    known = Spec.from_json(manifest.spec).context_length
    if context > known:
        raise DoesNotFitError(
            f"A prompt and its answer take {context} tokens; {folder.name} knows {known}.",
            "Ask for a shorter one: --tokens",
        )
    loaded = load_model(replace(config, model=str(folder), kv=KvBudget(tokens=context)))
    executor = cast(RoutedExecutor, loaded.executor)
    executor.record_routing(True)
    try:
        with _whole_or_not_at_all(path) as partial, TraceWriter(partial, header, path.name) as writer:
            recorder = _Recorder(executor, OneSequence(executor, context), writer, text.eos_ids, plan)
            for number, ids in enumerate(prompts):
                progress(number, len(prompts))
                recorder.answer(number, ids)
    except OSError as error:
        full = is_disk_full(error)
        raise (DoesNotFitError if full else FreetokenError)(
            f"{error.filename} cannot be written: {error.strerror}.",
            "Free some space, or name another file." if full else "Name another file.",
        ) from None
    progress(len(prompts), len(prompts))
    return Recorded(header, len(prompts), recorder.prefilled, recorder.decoded)


@contextmanager
def _whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` at the end, unless it was interrupted: then nothing is left."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class _Recorder:
    """Answers one prompt after another, and writes where each token went."""

    def __init__(
        self,
        executor: RoutedExecutor,
        sequence: OneSequence,
        writer: TraceWriter,
        eos_ids: frozenset[int],
        plan: TracePlan,
    ) -> None:
        self._executor = executor
        self._sequence = sequence
        self._writer = writer
        self._eos_ids = eos_ids
        self._plan = plan
        self.prefilled = self.decoded = 0

    def answer(self, number: int, prompt: Ints) -> None:
        """Record request `number`."""
        sampling = Sampling(temperature=self._plan.temperature, top_p=self._plan.top_p, seed=number)
        sampler = Sampler(sampling, prompt.tolist())
        request = f"prompt-{number + 1:03}"
        self._sequence.start_over()
        for part, last in chunks(prompt):
            logits = self._sequence.step(part, wanted=int(last))
            self.prefilled += self._write(request, PREFILL)
        for _ in range(self._plan.tokens):
            token = sampler.choose(logits[0]).token
            if token in self._eos_ids:
                return
            logits = self._sequence.step(np.array([token], np.int32))
            self.decoded += self._write(request, DECODE)

    def _write(self, request: str, phase: str) -> int:
        """Write the tokens of the last step; how many they are."""
        tokens = self._executor.routing().swapaxes(0, 1)
        for experts in tokens:
            self._writer.token(request, phase, experts)
        return len(tokens)


def _ids(text: Text, prompt: str) -> Ints:
    """The prompt in the model's own template; as it stands for a model that has none."""
    try:
        ids = text.render([{"role": "user", "content": prompt}]).ids
    except UnsupportedError:
        ids = text.encode_prompt(prompt)
    return np.array(ids, np.int32)
