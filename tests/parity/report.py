"""How near each executor is to transformers on one model, as a table that shows where a difference begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.errors import FreetokenError
from engine.program.executor import Executor

from .check import TOLERANCE, Difference, Floats, difference, differences, greedy, in_chunks, resumed
from .device import on_device
from .prepare import Prepared, native
from .tiny import Truth

# A hidden state's distance from the dequantised twin's, as a share of the largest value: activations are rounded to
# 16 bits a block, 1.5e-5 of a block's largest value, a few times a layer. Measured: up to 1.8e-4.
QUANTISED_TOLERANCE = 5e-4
CHUNKS = ([1], [7, 1, 16, 5])
RESUME_AT = 32
SAME_BITS = "same bits"


@dataclass(frozen=True)
class Promise:
    """What an executor owes: nearness to transformers, its greedy tokens, and the bits of its own whole prompt."""

    tolerance: float = TOLERANCE
    greedy: bool = True
    bits: bool = True


@dataclass(frozen=True)
class Column:
    """What an executor was found to do: how far each place is off, and an answer to each further question."""

    title: str
    places: Sequence[Difference]
    answers: Sequence[tuple[str, str]]
    broken: Sequence[str]  # a sentence for each promise that was not kept

    def cells(self) -> list[tuple[str, str]]:
        """Label and value of every row."""
        return [*((found.place, f"{found.share:.1e}") for found in self.places), *self.answers]


def report(title: str, model: Prepared) -> bool:
    """Print how far each executor is off, layer by layer; true where all keep what they promise."""
    quantised = any(field.shape.codec != "f32" for bank in model.ftw.banks for field in bank.fields)
    promise = Promise(QUANTISED_TOLERANCE, greedy=False) if quantised else Promise()
    print(f"\n{title}: largest difference from transformers, as a share of the largest value")
    columns = [
        column("reference", model.truth, model.reference(), model.reference(), Promise(bits=False)),
        column("native", model.truth, native(model.ftw), native(model.ftw), promise),
    ]
    try:
        with on_device(model.ftw) as device:
            columns.append(column("sim", model.truth, device, native(model.ftw), promise))
    except FreetokenError as refusal:
        print(f"  sim: {refusal}")
    _print_table(columns)
    broken = [f"  {each.title}: {sentence}" for each in columns for sentence in each.broken]
    print(*broken, sep="\n", end="\n" if broken else "")
    return not broken


def column(title: str, truth: Truth, executor: Executor, other: Executor, promise: Promise) -> Column:
    """Ask an executor everything; `other` goes on from what it saved."""
    places, broken = differences(executor, truth), list[str]()
    continued = resumed(executor, other, truth.prompt, RESUME_AT)  # while both have the same room for pages
    first = next((found for found in places if not found.share <= promise.tolerance), None)
    if first is not None:
        broken.append(f"the first difference is at {first.place}, largest at token {first.row}")
    said = greedy(executor, truth)
    equal = next((at for at, pair in enumerate(zip(said, truth.greedy, strict=True)) if pair[0] != pair[1]), len(said))
    if promise.greedy and equal < len(said):
        broken.append(f"greedy token {equal} is {said[equal]}, not {truth.greedy[equal]}")
    answers = [("greedy", f"{equal} equal")]
    whole = in_chunks(executor, truth.prompt, [len(truth.prompt)])
    again = {
        "chunked": [(in_chunks(executor, truth.prompt, sizes), whole) for sizes in CHUNKS],
        "resumed": [(part, whole[RESUME_AT:]) for part in continued],
    }
    for question, pairs in again.items():
        worst = max((difference(question, *pair) for pair in pairs), key=lambda found: found.share)
        same = all(_same_bits(*pair) for pair in pairs)
        answers.append((question, SAME_BITS if same else f"{worst.share:.1e}"))
        if not same and (promise.bits or not worst.share <= TOLERANCE):
            broken.append(f"{question} logits differ from those of the whole prompt, most at row {worst.row}")
    return Column(title, places, answers, broken)


def _same_bits(ours: Floats, theirs: Floats) -> bool:
    return bool(np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)))


def _print_table(columns: Sequence[Column]) -> None:
    print(f"  {'':10s}" + "".join(f"  {each.title:10s}" for each in columns).rstrip())
    for row in zip(*(each.cells() for each in columns), strict=True):
        print(f"  {row[0][0]:10s}" + "".join(f"  {value:10s}" for _, value in row).rstrip())
