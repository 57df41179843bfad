"""Whether a loaded model serves somebody who asked for particular settings. Pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from engine.base.config import DEVICES
from engine.base.errors import DoesNotFitError, UnsupportedError, UsageError
from engine.base.units import parse_experts
from engine.memory.pages import PAGE_TOKENS, pages_for


@dataclass(frozen=True)
class LoadFlags:
    """Settings of a worker that somebody asked for; None: does not matter to them. One kv field at most is set."""

    device: str | None = None
    threads: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    experts: str | None = None

    @staticmethod
    def from_json(table: Mapping[str, Any]) -> LoadFlags:
        """The flags among the members of `table`, checked. UsageError names the member."""
        device, experts = table.get("device"), table.get("experts")
        if device is not None and device not in DEVICES:
            raise UsageError(f"device {device!r} is not one of {', '.join(DEVICES)}.")
        if experts is not None:
            if not isinstance(experts, str):
                raise UsageError(f"experts {experts!r} is not text such as 2G, 37% or 120.")
            parse_experts(experts)
        counts = {name: _count(name, table.get(name)) for name in ("threads", "context", "kv_tokens", "kv_bytes")}
        if counts["kv_tokens"] is not None and counts["kv_bytes"] is not None:
            raise UsageError("kv_tokens and kv_bytes are both given.", "Give one of them.")
        return LoadFlags(device=device, experts=experts, **counts)

    def over(self, defaults: LoadFlags) -> LoadFlags:
        """These flags, and `defaults` where they say nothing. The two kv fields count as one."""
        if self.kv_tokens is not None or self.kv_bytes is not None:
            defaults = replace(defaults, kv_tokens=None, kv_bytes=None)
        return LoadFlags(
            **{
                name: default if value is None else value
                for (name, value), default in zip(vars(self).items(), vars(defaults).values(), strict=True)
            }
        )


def _count(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**62:
        raise UsageError(f"{name} {value!r} is not a positive whole number.")
    return value


def pick_device(asked: str | None) -> str:
    """The device to use. UnsupportedError for those that this release only knows by name."""
    if asked in (None, "auto", "cpu"):
        return "cpu"
    raise UnsupportedError(f"--device {asked} is not there yet in this release.", "Use --device cpu.")


@dataclass(frozen=True)
class Running:
    """What a loaded model runs with."""

    device: str
    threads: int
    context: int
    kv_tokens: int
    kv_bytes_per_token: int


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

    Context memory can be moved while requests run; anything else takes a restart, which only an idle model gets.
    `experts` means nothing on the cpu, so any value of it matches there. DoesNotFitError if the flags contradict
    each other.
    """
    wanted = _kv_tokens(asked, running.kv_bytes_per_token)
    if asked.context is not None and wanted is not None and asked.context > wanted:
        raise DoesNotFitError(
            f"--context {asked.context} needs {asked.context - wanted} tokens more than --kv leaves ({wanted}).",
            f"Give --kv {pages_for(asked.context) * PAGE_TOKENS} or --context {wanted}.",
        )
    fixed = []
    if asked.device not in (None, "auto", running.device):
        fixed.append(f"--device {asked.device} (it runs on {running.device})")
    if asked.threads not in (None, running.threads):
        fixed.append(f"--threads {asked.threads} (it runs with {running.threads})")
    if asked.context not in (None, running.context):
        fixed.append(f"--context {asked.context} (it has {running.context})")
    if fixed:
        return Decision(Step.REFUSE if busy else Step.RESTART, tuple(fixed))
    if wanted not in (None, running.kv_tokens):
        return Decision(Step.RESIZE, (f"--kv {wanted} (it has {running.kv_tokens})",))
    return Decision(Step.ATTACH)


def _kv_tokens(asked: LoadFlags, bytes_per_token: int) -> int | None:
    """The budget that was asked for, in tokens of whole pages, as a worker would round it."""
    if asked.kv_tokens is not None:
        return pages_for(asked.kv_tokens) * PAGE_TOKENS
    if asked.kv_bytes is not None:
        return asked.kv_bytes // bytes_per_token // PAGE_TOKENS * PAGE_TOKENS
    return None
