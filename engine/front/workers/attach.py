"""Whether a loaded model serves somebody who asked for particular settings. Pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from reprlib import repr as shown
from typing import Any

from engine.base.config import DEVICES, check_device
from engine.base.sampling import Range
from engine.base.units import KvBudget, parse_experts
from engine.front.wire.fields import Field, FieldError, described, whole, within
from engine.memory.budget import check_context, crosses, whole_pages


@dataclass(frozen=True)
class LoadFlags:
    """Settings of a worker that somebody asked for; None: does not matter to them.

    `experts` is the exact text of an `ExpertRoom`.
    """

    device: str | None = None
    threads: int | None = None
    context: int | None = None
    kv: KvBudget | None = None
    experts: str | None = None

    @staticmethod
    def of(values: Mapping[str, Any]) -> LoadFlags:
        """The flags among values that `FLAGS` has read."""
        plain = {name: values[name] for name in ("device", "threads", "context", "experts")}
        return LoadFlags(**plain, kv=kv_budget(values))

    def over(self, defaults: LoadFlags) -> LoadFlags:
        """These flags, and `defaults` where they say nothing."""
        return replace(defaults, **{name: value for name, value in vars(self).items() if value is not None})


def kv_budget(values: Mapping[str, Any]) -> KvBudget | None:
    """The budget among values that `FLAGS` has read."""
    given = [name for name in ("kv_tokens", "kv_bytes", "kv_share") if values[name] is not None]
    if len(given) > 1:
        raise FieldError(given[0], f"{given[1]} is given as well.", "Give one of them.")
    if not given:
        return None
    if given == ["kv_share"] and not 0 < values["kv_share"] < 1:
        raise FieldError("kv_share", "a share lies between 0 and 1.")
    return KvBudget(**{given[0].removeprefix("kv_"): values[given[0]]})


def _device(name: str, value: Any) -> str:
    if value not in DEVICES:
        raise FieldError(name, f"{shown(value)} is not one of {', '.join(DEVICES)}.")
    return str(value)


@described({"type": "string"})
def _experts(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise FieldError(name, f"{shown(value)} is not text such as 2G, 37%, 120 or 0.")
    return parse_experts(value).exact


_COUNT = Field(whole(1, 2**62))
FLAGS = {
    "device": Field(_device),
    "threads": _COUNT,
    "context": _COUNT,
    "kv_tokens": _COUNT,
    "kv_bytes": _COUNT,
    "kv_share": Field(within(Range(0, 1))),
    "experts": Field(_experts),
}


def pick_device(asked: str | None) -> str:
    """The device to use; `auto` takes the cpu. UnsupportedError for one that is not to be had here."""
    device = asked or "auto"
    check_device(device)
    return "cpu" if device == "auto" else device


@dataclass(frozen=True)
class Running:
    """What a loaded model runs with. `experts` is what somebody asked for and has; None: the worker decided it."""

    device: str
    threads: int
    context_limit: int
    context_border: int | None
    kv_tokens: int
    kv_bytes_per_token: int
    experts: str | None = None
    slots: int = 0

    def context(self, kv_tokens: int) -> int:
        """The longest conversation under a budget of `kv_tokens`."""
        return min(self.context_limit, kv_tokens)


class Step(Enum):
    """What to do about a loaded model."""

    ATTACH = auto()
    RESIZE = auto()
    RESTART = auto()
    REFUSE = auto()


@dataclass(frozen=True)
class Decision:
    """`mismatches` are phrases such as `--threads 2 (it runs with 4)`."""

    step: Step
    mismatches: tuple[str, ...] = ()


def decide(running: Running, asked: LoadFlags, busy: bool) -> Decision:
    """How to serve `asked` with a model that runs as `running`: every flag that was given must hold.

    Memory can be moved while requests run, unless that gives another context than was asked for, or one beyond the
    model's border. Anything else takes a restart, which only an idle model gets. `experts` means nothing on the cpu, so
    any value of it matches there. DoesNotFitError if the flags contradict each other.
    """
    wanted = running.kv_tokens
    shared = asked.kv is not None and asked.kv.share > 0 and running.device != "cpu"
    if asked.kv is not None and not shared:
        wanted = whole_pages(asked.kv, running.kv_bytes_per_token)
        check_context(asked.context or 0, wanted, running.kv_bytes_per_token)
    context, before = running.context(wanted), running.context(running.kv_tokens)
    fixed = []
    if asked.device not in (None, "auto", running.device):
        fixed.append(f"--device {asked.device} (it runs on {running.device})")
    if asked.threads not in (None, running.threads):
        fixed.append(f"--threads {asked.threads} (it runs with {running.threads})")
    if asked.context not in (None, context):
        fixed.append(f"--context {asked.context} (it {'has' if context == before else 'would have'} {context})")
    elif shared and asked.context is not None:
        fixed.append(f"--kv {asked.kv} together with --context {asked.context}")  # only a load weighs them together
    elif crosses(running.context_border, before, context):
        fixed.append(f"--kv {wanted} (beyond {running.context_border} tokens it counts positions in another way)")
    if fixed:
        return Decision(Step.REFUSE if busy else Step.RESTART, tuple(fixed))
    moves = []
    if shared or wanted != running.kv_tokens:
        moves.append(f"--kv {asked.kv if shared else wanted} (it has {running.kv_tokens})")
    if running.device != "cpu" and asked.experts not in (None, running.experts):
        moves.append(f"--experts {asked.experts} (it has {running.slots} slots)")
    return Decision(Step.RESIZE if moves else Step.ATTACH, tuple(moves))
