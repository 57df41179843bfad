"""What loading hands to the engine of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.program.executor import Executor
from engine.worker.budget import Budget, Planner
from engine.worker.context_file import ContextIdentity
from engine.worker.experts import CachedExperts
from engine.worker.scheduler import POLICY, Policy


class Watch(Protocol):
    """Looks at the device's memory for other programs and growing contexts."""

    def wished(self, budget: Budget) -> None:
        """Somebody has asked for this budget: it is what to come back to."""
        ...

    def look(self, now: float, budget: Budget, wanted_tokens: int) -> tuple[Budget, str] | None:
        """Another budget that should be in force, and why; None while this one should stay.

        `wanted_tokens` are those that live and waiting requests need together.
        """
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A model that can take steps, and what the front is told about it.

    `experts` are those on a device; None: they run in place from memory. `watch` is asked about once a second; None
    where nobody looks.
    """

    executor: Executor
    vocab_size: int
    context_limit: int  # the context that was asked for, else the model's
    budget: Budget
    planner: Planner
    device: str
    isa: str
    threads: int
    model_bytes: int
    load_seconds: float
    dense_step_bytes: int  # of the weights that every step reads
    context_border: int | None = None  # a context on its other side takes another program
    device_text: str = ""  # the device as people know it
    experts: CachedExperts | None = None
    policy: Policy = POLICY  # of its steps
    watch: Watch | None = None
    notes: tuple[str, ...] = ()
    tokenizer: Path | None = None  # the model's tokenizer.json, for grammars
    identity: ContextIdentity = field(default_factory=ContextIdentity)  # of saved contexts
