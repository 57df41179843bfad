"""A model with a living worker, as everybody in the front sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.base.errors import BusyError, NotFoundError
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.front.workers.attach import LoadFlags, Running
from engine.front.workers.client import WorkerClient
from engine.text.text import Text
from engine.worker.protocol import Ready, Resized, Stats

Edition = tuple[int, int, int]


@dataclass
class Loaded:
    """A model with a living worker. `ready` is kept up to date with resizes.

    `edition` is that of the files which the worker has mapped. `experts` is the room for experts that was asked for and
    is there; None: the worker decided it. `stats` are the last that were heard, {} before.
    """

    name: str
    client: WorkerClient
    ready: Ready
    text: Text
    defaults: Mapping[str, float]
    flags: LoadFlags
    keep_alive: float
    edition: Edition
    users: int = 0
    used_at: float = 0.0  # by the monotonic clock, as its deadline is
    experts: str | None = None
    stats: Stats = field(default_factory=lambda: Stats(0, {}))
    resizing: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> Running:
        ready = self.ready
        return Running(
            device=ready.device,
            threads=ready.threads,
            context_limit=ready.context_limit,
            context_border=ready.context_border,
            kv_tokens=ready.kv_tokens,
            kv_bytes_per_token=ready.kv_bytes_per_token,
            experts=self.experts,
            slots=0 if ready.cache is None else ready.cache.slots,
        )

    @property
    def until(self) -> float | None:
        """When it is unloaded if nobody asks it anything, in Unix seconds; None: never."""
        idle = 0.0 if self.users else time.monotonic() - self.used_at
        return None if self.keep_alive == float("inf") else time.time() + self.keep_alive - idle

    def state(self) -> dict[str, Any]:
        """The model as the control interface shows it."""
        ready, cache = self.ready, self.ready.cache
        return {
            "name": self.name,
            "size": ready.model_bytes,
            "device": ready.device,
            "device_text": ready.device_text,
            "device_total": ready.device_total,
            "threads": ready.threads,
            "experts": None if cache is None else cache.share,
            "expert_slots": None if cache is None else cache.slots,
            "expert_bytes": None if cache is None else cache.bytes,
            "hit_rate": self.stats.values.get("hit_rate"),
            "kv_tokens": ready.kv_tokens,
            "kv_bytes": ready.kv_bytes,
            "context": ready.context,
            "until": self.until,
            "busy": self.users > 0,
        }

    def moved(self, resized: Resized) -> None:
        """Note the sizes after a resize, whoever wanted it."""
        self.ready = replace(
            self.ready,
            kv_tokens=resized.kv_after,
            kv_bytes=resized.kv_bytes,
            context=resized.context,
            cache=resized.cache_after,
        )
        if resized.cache_before != resized.cache_after:
            self.experts = None

    def check_still(self) -> None:
        """Raise BusyError while the model is being resized."""
        if self.resizing:
            raise BusyError(
                f"{self.name} is being resized for somebody else at this moment.",
                "Look at its new sizes with `freetoken ps`, then ask again.",
            )


def edition_of(folder: Path) -> Edition:
    """What tells a model from another that takes its name. NotFoundError for one that is removed at this moment."""
    try:
        status = (folder / MANIFEST_NAME).stat()
    except FileNotFoundError:
        raise NotFoundError(f"The model {folder.name} was removed.", "freetoken list shows what is there.") from None
    return status.st_dev, status.st_ino, status.st_mtime_ns
