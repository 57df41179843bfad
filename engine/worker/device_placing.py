"""Putting a model on a device whose memory others use too.

Sizes are planned twice: from the headers, and again with what weights and buffers have really taken. Memory that goes
to others in between makes the next plan smaller, as far as nobody asked for its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.base.errors import NoRoomError
from engine.base.units import ExpertRoom, KvBudget, format_size, parse_experts
from engine.device.driver import Driver
from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.files.ftw.opening import Ftw
from engine.memory.budget import crosses
from engine.memory.device_budget import DeviceNeeds, DevicePlan, plan_device
from engine.memory.pages import PAGE_TOKENS
from engine.program.device.executor import DeviceExecutor
from engine.program.ir import KV_DTYPE, Program
from engine.program.lowering.lower import lower
from engine.program.step_bytes import WeightBytes
from engine.spec.schema import Spec
from engine.worker.device_needs import device_needs
from engine.worker.device_planner import plannable
from engine.worker.loading import context_border
from engine.worker.protocol import WorkerConfig
from engine.worker.scheduler import POLICY

_ATTEMPTS = 4  # at finding room while others take it
_LESS = 0.9  # of what was planned with last, where the device does not tell what has gone


@dataclass(frozen=True)
class Wishes:
    """What somebody asked for of a device's memory; None: decide for me."""

    context: int | None
    kv: KvBudget | None
    experts: ExpertRoom | None

    @staticmethod
    def of(config: WorkerConfig) -> Wishes:
        """Those of a worker's configuration. UsageError for experts that are none."""
        return Wishes(config.context, config.kv, None if config.experts is None else parse_experts(config.experts))

    def plan(self, needs: DeviceNeeds, total: int, free: int) -> DevicePlan:
        """The division of what is free of a device of `total` bytes. Raises as `plan_device`."""
        return plan_device(needs, plannable(total, free), context=self.context, kv=self.kv, experts=self.experts)


@dataclass(frozen=True)
class Placed:
    """A model on a device, as `plan` says; `needs` are as measured."""

    executor: DeviceExecutor
    program: Program
    plan: DevicePlan
    needs: DeviceNeeds
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placing:
    """One model and one device."""

    driver: Driver
    model: Ftw
    spec: Spec
    bank: HostBank
    wishes: Wishes
    split: Split
    config: WorkerConfig
    make: Callable[..., DeviceExecutor] = DeviceExecutor
    step_tokens: int = POLICY.max_step_tokens

    def place(self) -> Placed:
        """Place it, with less context and fewer experts than were planned where memory has gone meanwhile.

        NoRoomError, with nothing left behind, where what was asked for by number cannot be had any more.
        """
        total, free = self.driver.memory()
        needs = self._needs()
        plan = first = self.wishes.plan(needs, total, free)
        for left in reversed(range(_ATTEMPTS)):
            try:
                placed = self._try(plan, needs, total, free)
                return replace(placed, notes=_smaller(first, placed.plan) if left < _ATTEMPTS - 1 else ())
            except NoRoomError:
                if not left:
                    raise
                free = min(self.driver.memory()[1], int(free * _LESS))
                plan = self.wishes.plan(needs, total, free)
        raise AssertionError("the last attempt returns or raises")

    def _needs(self) -> DeviceNeeds:
        fillable = [self.bank.fillable(number) for number in range(len(self.model.banks))]
        weights = WeightBytes.of(self.model.manifest)
        banks, context = self.model.manifest.banks, self.spec.context_length
        return device_needs(lower(self.spec), weights, banks, context, fillable, self.step_tokens)

    def _try(self, plan: DevicePlan, needs: DeviceNeeds, total: int, free: int) -> Placed:
        """Weights and buffers first, then with what they have taken everything else."""
        program = lower(self.spec, plan.context.context)
        before = self.driver.memory()[1]
        executor = self._executor(program, plan)
        try:
            taken = before - self.driver.memory()[1]
            measured = replace(needs, buffers=max(0, taken - needs.weights))
            final = self.wishes.plan(measured, total, min(free, self.driver.memory()[1] + taken))
            final = _on_one_side(final, plan.context.context, context_border(self.spec))
            executor.resize_context(final.context.room)
            executor.resize_experts(final.slots)
            return Placed(executor, program, final, measured)
        except BaseException:
            executor.close()
            raise

    def _executor(self, program: Program, plan: DevicePlan) -> DeviceExecutor:
        return self.make(
            program,
            self.model,
            self.driver,
            self.bank,
            slots=tuple(0 for _ in plan.slots),
            split=self.split,
            threads=self.config.threads,
            isa=self.config.isa,
            kv_dtype=KV_DTYPE,
            page_tokens=PAGE_TOKENS,
            max_tokens=self.step_tokens,
        )


def _on_one_side(plan: DevicePlan, context: int, border: int | None) -> DevicePlan:
    """`plan`, with a context that a program for `context` tokens can hold too."""
    if not crosses(border, context, plan.context.context):
        return plan
    assert border is not None
    if plan.context.context < context:
        raise NoRoomError("The device has less memory than a moment ago.", "Try again.")  # and another program is made
    return replace(plan, context=replace(plan.context, context=border))


def _smaller(first: DevicePlan, final: DevicePlan) -> tuple[str, ...]:
    return (
        f"{format_size(max(0, first.total - final.total))} of the device went to others while the model was loaded: "
        f"it has {sum(final.slots)} slots instead of {sum(first.slots)}, and context memory for "
        f"{final.context.kv_tokens} tokens instead of {first.context.kv_tokens}.",
    )
