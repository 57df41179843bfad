"""How a device's memory would be divided for a model, as an estimate states it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.config import Config
from engine.base.units import format_size
from engine.files.conversion.plan import BankPlan
from engine.files.ftw.manifest import BankInfo
from engine.memory.budget import ContextPlan
from engine.memory.device_budget import plan_device
from engine.program.ir import Program
from engine.program.step_bytes import WeightBytes
from engine.worker.device_needs import device_needs
from engine.worker.device_planner import kept_free
from engine.worker.device_policy import device_policy


@dataclass(frozen=True)
class VideoMemory:
    """The parts in bytes, which together are `total`; `buffers` are told from sizes, and measured once it is loaded.

    `slots` of experts in all, `share` of the experts that have one, `kept` what stays free for other programs,
    `largest_context` the most tokens that --context could be.
    """

    total: int
    weights: int
    buffers: int
    kv: int
    experts: int
    slots: int
    share: float
    kept: int
    remainder: int
    largest_context: int

    @property
    def used(self) -> int:
        """What the model takes."""
        return self.weights + self.buffers + self.kv + self.experts

    def rows(self) -> list[tuple[str, str]]:
        """Label and value for people."""
        experts = f"{format_size(self.experts)} for {self.slots} slots ({self.share:.0%} of all)"
        return [
            ("VRAM", f"{format_size(self.used)} of {format_size(self.total)}"),
            ("  weights", format_size(self.weights)),
            ("  buffers", f"about {format_size(self.buffers)}"),
            ("  kv", format_size(self.kv)),
            ("  experts", experts if self.slots else "none cached: the CPU computes all"),
            ("  left", f"{format_size(self.remainder)}, and {format_size(self.kept)} kept for other programs"),
            ("largest context", f"{self.largest_context} tokens"),
        ]


def plan_video_memory(
    program: Program,
    weights: WeightBytes,
    banks: Sequence[BankInfo | BankPlan],
    model_context: int,
    total: int,
    config: Config,
) -> tuple[VideoMemory, ContextPlan]:
    """The division of a free device of `total` bytes. Raises as `plan_device`."""
    policy = device_policy(program, banks, total, is_virtual=config.device == "sim")
    needs = device_needs(program, weights, banks, model_context, tokens=policy.max_step_tokens)
    kept = min(kept_free(total), total)
    plan = plan_device(needs, total - kept, context=config.context, kv=config.kv, experts=config.experts)
    memory = VideoMemory(
        total=total,
        weights=plan.weights,
        buffers=plan.buffers,
        kv=plan.kv,
        experts=plan.experts,
        slots=sum(plan.slots),
        share=plan.share,
        kept=kept,
        remainder=plan.remainder,
        largest_context=plan.largest_context,
    )
    return memory, plan.context
