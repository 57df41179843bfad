"""What a model is going to take on a device, told from its headers: for estimates, and before its experts are read."""

from __future__ import annotations

from collections.abc import Sequence

from engine.base.units import MIB
from engine.files.conversion.plan import BankPlan
from engine.files.ftw.manifest import BankInfo
from engine.memory.device_budget import DeviceNeeds
from engine.memory.slots import BankSize, SlotTable
from engine.program.ir import Program
from engine.program.step_bytes import WeightBytes
from engine.spec.layout import ORDER
from engine.worker.loading import context_needs
from engine.worker.scheduler import POLICY

MAP_CHUNK = 2 * MIB  # the unit in which devices map memory
_SPARE = 16 * MIB  # counters, tables and what is rounded up, all together
_COPIES = 2  # of a row: as computed, and packed for the next product


def device_needs(
    program: Program,
    weights: WeightBytes,
    banks: Sequence[BankInfo | BankPlan],
    model_context: int,
    fillable: Sequence[int] | None = None,
    tokens: int = POLICY.max_step_tokens,
) -> DeviceNeeds:
    """Needs by sizes alone; once an executor is there, what it has really taken replaces the buffers.

    `fillable` are the records of each bank that the device reaches; None: all of them, where a bank can be cached.
    `tokens` are those of the longest step.
    """
    sizes = [
        BankSize(bank.record_bytes, count, count if cacheable(bank) else 0)
        for bank in banks
        for count in (bank.experts_per_layer * len(bank.layers),)
    ]
    if fillable is not None:
        sizes = [
            BankSize(size.record_bytes, size.records, min(size.fillable, reached))
            for size, reached in zip(sizes, fillable, strict=True)
        ]
    return DeviceNeeds(
        weights=sum(weights.dense.values()),
        buffers=buffer_bytes(program, banks, tokens) + _SPARE,
        kept=context_needs(program),
        model_context=model_context,
        table=SlotTable(tuple(sizes), max(1, top_k_of(program)), MAP_CHUNK),
    )


def cacheable(bank: BankInfo | BankPlan) -> bool:
    """Whether a device can run experts of a bank: not those that read their input in an order of their own."""
    return not any(field.name.endswith(ORDER) for field in bank.fields)


def top_k_of(program: Program) -> int:
    """Experts of a token in a layer; 0 for a model without experts."""
    return max((program.buffers[op.reads[1]].width for op in program.ops if op.kind == "experts"), default=0)


def buffer_bytes(program: Program, banks: Sequence[BankInfo | BankPlan], tokens: int) -> int:
    """Rows of a step of so many tokens, and of experts a row a (token, place) pair."""
    rows = POLICY.max_active
    values = sum(
        buffer.width * (rows if buffer.domain == "row" else tokens)
        for buffer in program.buffers.values()
        if not buffer.base
    )
    pair = max((field.shape.rows + field.shape.cols for bank in banks for field in bank.fields), default=0)
    return 4 * _COPIES * (values + 2 * pair * tokens * top_k_of(program))
