"""The front of a store as an object, and what it says of its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.config import Config
from engine.base.units import ExpertRoom, KvBudget, format_duration, format_size, format_tokens
from freetoken_cli.unix_http import call

CONTROL_SECONDS = 60.0
_WORKER_SETTINGS = ("device", "threads", "context", "kv", "experts", "keep_alive")


@dataclass(frozen=True)
class ModelState:
    """A loaded model as the front sees it. Sizes in bytes.

    `experts` is the share of all experts that have a slot, `hit_rate` that of routed ones found there lately; None
    where nothing is cached, or nothing has been routed yet.
    """

    name: str
    size: int
    device: str
    device_text: str
    device_total: int
    threads: int | None
    experts: float | None
    expert_slots: int | None
    expert_bytes: int | None
    hit_rate: float | None
    kv_tokens: int
    kv_bytes: int
    context: int
    until: float | None

    @staticmethod
    def from_json(table: Mapping[str, Any]) -> ModelState:
        """The state in an answer of the front."""
        return ModelState(**{name: table[name] for name in ModelState.__dataclass_fields__})

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `ps --json`."""
        return dict(vars(self))

    @property
    def kv(self) -> str:
        return f"{format_tokens(self.kv_tokens)} ({format_size(self.kv_bytes)})"

    @property
    def slots(self) -> str:
        """The room for experts, as `120 slots (37%, 1.20 GiB)`; "" where they run in place from memory."""
        if self.expert_slots is None or self.experts is None or self.expert_bytes is None:
            return ""
        if not self.expert_slots:
            return "no slots"
        return f"{self.expert_slots} slots ({self.experts:.0%}, {format_size(self.expert_bytes)})"

    @property
    def cache(self) -> str:
        """The room for experts and how good it has been lately."""
        if not self.slots:
            return ""
        hits = "no hit rate yet" if self.hit_rate is None else f"hit rate {self.hit_rate:.0%}"
        return f"experts {self.slots}" + (f", {hits}" if self.expert_slots else "")

    @property
    def place(self) -> str:
        """Device and threads, as `cpu, 2 threads`."""
        if self.threads is None:
            return self.device
        return f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True)
class Front:
    """The front of one store, reached by its private socket."""

    socket: Path

    def load(self, body: Mapping[str, Any]) -> tuple[ModelState, Mapping[str, Any]]:
        """Carry out a `load_request`: load, or attach to what is loaded if all that is explicit matches.

        The state and the front's raw answer with `load` and `notes`.
        """
        answer = call(self.socket, "POST", "/control/load", body)
        return ModelState.from_json(answer), answer

    def models(self) -> list[ModelState]:
        """What is loaded."""
        answer = call(self.socket, "GET", "/control/ps", timeout=CONTROL_SECONDS)
        return [ModelState.from_json(table) for table in answer["models"]]

    def in_use(self) -> tuple[set[str], set[str]]:
        """Names of models that are loaded, and of those that are being loaded."""
        answer = call(self.socket, "GET", "/control/ps", timeout=CONTROL_SECONDS)
        return {table["name"] for table in answer["models"]}, set(answer["loading"])

    def resize(self, model: str, kv: KvBudget | None, experts: ExpertRoom | None) -> Mapping[str, Any]:
        """Move memory of a loaded model: `before`, `after`, `seconds`, `notes`."""
        body: dict[str, Any] = {"model": model}
        if kv is not None:
            body |= kv_fields(kv)
        if experts is not None:
            body["experts"] = experts.exact
        return call(self.socket, "POST", "/control/resize", body, timeout=CONTROL_SECONDS)

    def save_context(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the context of a conversation to a file: `tokens` and `bytes`. Takes as long as the disk does."""
        return call(self.socket, "POST", "/control/save", body)

    def load_context(self, model: str, path: Path) -> Mapping[str, Any]:
        """Take a file of `save_context` into memory: `tokens` of `total`."""
        return call(self.socket, "POST", "/control/restore", {"model": model, "path": str(path)})

    def stop(self, model: str) -> list[str]:
        """Unload `model`; the names that were unloaded."""
        answer = call(self.socket, "POST", "/control/stop", {"model": model}, timeout=CONTROL_SECONDS)
        return [str(name) for name in answer["stopped"]]


def time_left(until: float | None, now: float) -> str:
    """How long a model stays loaded if nobody asks it anything; both in Unix seconds."""
    return "forever" if until is None else format_duration(float(round(max(0.0, until - now))))


def kv_fields(kv: KvBudget) -> dict[str, float]:
    """A budget as the front's requests have it."""
    return {f"kv_{name}": value for name, value in vars(kv).items() if value}


def load_request(model: str, config: Config) -> dict[str, Any]:
    """The body of a load: what a flag said must hold, what else was said counts for a fresh load alone."""
    wanted = worker_settings(config)
    explicit = {name: value for name, (value, typed) in wanted.items() if typed}
    return {
        "model": model,
        **explicit,
        "defaults": {name: value for name, (value, typed) in wanted.items() if not typed},
    }


def worker_settings(config: Config) -> dict[str, tuple[Any, bool]]:
    """What a worker is loaded with: name to (value, whether a flag said so). What nobody said is absent."""
    settings: dict[str, tuple[Any, bool]] = {}
    for name in _WORKER_SETTINGS:
        value, typed = getattr(config, name), name in config.explicit
        if value is None:
            continue
        if isinstance(value, KvBudget):
            settings |= {key: (number, typed) for key, number in kv_fields(value).items()}
        elif name == "keep_alive":
            settings[name] = (None if value == float("inf") else value, typed)
        else:
            settings[name] = (value.exact if isinstance(value, ExpertRoom) else value, typed)
    return settings


def in_force(state: ModelState) -> str:
    """One line: the model, its device, the slots and the hit rate, context memory."""
    parts = [f"{state.name} on {state.place}", state.cache, f"kv {state.kv}", f"context {state.context}"]
    return ", ".join(part for part in parts if part)


def resize_line(answer: Mapping[str, Any]) -> str:
    """`before → after` of a resize, and the time it took."""
    before, after = ModelState.from_json(answer["before"]), ModelState.from_json(answer["after"])
    line = f"{after.name}: kv {before.kv} → {after.kv}, context {before.context} → {after.context}"
    if after.slots and before.slots:
        line += f", experts {before.slots} → {after.slots}"
    return f"{line}, in {format_duration(answer['seconds'])}"
