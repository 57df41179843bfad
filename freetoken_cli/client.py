"""The front as an object: load, ps, resize, stop, and a loaded model that chats."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.base.config import Config
from engine.base.errors import FreetokenError
from engine.base.paths import Paths
from engine.base.sampling import CHAT_DEFAULTS
from engine.base.units import (
    ExpertRoom,
    KvBudget,
    format_duration,
    format_size,
    format_tokens,
    parse_experts,
    parse_kv,
)
from engine.front.workers.defaults import says_how_to_sample
from freetoken_cli.chat import Answer, Finished, Message, Piece, Sampling, Statistics
from freetoken_cli.front_process import ensure_front
from freetoken_cli.unix_http import FrontGone, call, stream

CONTROL_SECONDS = 60.0
GRACE_SECONDS = 10.0
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


def chat_defaults(folder: Path) -> Mapping[str, float]:
    """How `run` samples from a model that does not say it itself; nothing for one that does."""
    return {} if says_how_to_sample(folder) else CHAT_DEFAULTS


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _thinking(think: bool | None) -> dict[str, Any]:
    """What a request says of thinking; nothing where that is up to the model's template."""
    return {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}


class ModelChat:
    """A model that answers. Found unloaded, or its front gone, it is loaded again as it was asked for.

    `close` it at the end: until then it is kept at least `GRACE_SECONDS` between two questions, however short the
    user's keep-alive is, because loading it for each request of one command helps nobody.
    """

    def __init__(self, paths: Paths, model: str, config: Config) -> None:
        self._paths = paths
        self._model = model
        self._config = config
        self._state: ModelState | None = None
        self._load: float | None = None  # seconds of a load that no answer has told of yet
        self._attached_at = -math.inf
        self._ours = "keep_alive" in config.explicit  # whether our keep-alive counts for the loaded model
        self._defaults = chat_defaults(paths.store / model)

    def load(self) -> tuple[ModelState, Mapping[str, Any]]:
        """Attach to the model or load it, starting a front if there is none; as `Front.load`."""
        try:
            self._state, answer = self._ask_to_load()
        except FrontGone as gone:
            if not isinstance(gone.__cause__, ConnectionRefusedError | FileNotFoundError):
                raise
            # It answered a moment ago and was about to leave, as one does that had nothing to do for a while.
            self._state, answer = self._ask_to_load()
        self._attached_at = time.monotonic()
        if answer["load"] is not None:
            self._load, self._ours = answer["load"], True
        return self._state, answer

    def _ask_to_load(self) -> tuple[ModelState, Mapping[str, Any]]:
        config = replace(self._config, keep_alive=max(self._config.keep_alive, GRACE_SECONDS))
        ensure_front(self._paths, self._config.keep_alive)
        return Front(self._paths.socket).load(load_request(self._model, config))

    def close(self) -> None:
        """Let the user's own keep-alive begin."""
        if self._state is None or not self._ours or self._config.keep_alive >= GRACE_SECONDS:
            return
        # A model that was unloaded meanwhile must not be loaded again for this.
        with contextlib.suppress(FreetokenError):
            front = Front(self._paths.socket)
            if any(state.name == self._state.name for state in front.models()):
                front.load({"model": self._state.name, "keep_alive": self._config.keep_alive})

    def _attached(self) -> ModelState:
        """The model's state, loaded; asked for again unless that was a moment ago."""
        if self._state is not None and time.monotonic() - self._attached_at < GRACE_SECONDS / 2:
            return self._state
        return self.load()[0]

    def describe(self) -> str:
        return in_force(self._attached())

    def answer(self, messages: Sequence[Message], sampling: Sampling, think: bool | None) -> Answer:
        state = self._attached()
        self._attached_at = -math.inf  # whatever happens now, the next question looks again
        body: dict[str, Any] = {
            "model": state.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if sampling.shaped else self._defaults),
            **sampling.request(),
            **_thinking(think),
        }
        reason, statistics = "stop", Statistics()
        with closing(stream(self._paths.socket, "/v1/chat/completions", body)) as events:
            for event in events:
                if "statistics" in event:
                    statistics = Statistics.from_json({"load": self._load, **event["statistics"]})
                for choice in event.get("choices", ()):
                    delta = choice.get("delta") or {}
                    if delta.get("reasoning_content"):
                        yield Piece(delta["reasoning_content"], thinking=True)
                    if delta.get("content"):
                        yield Piece(delta["content"])
                    reason = choice.get("finish_reason") or reason
        self._load = None
        yield Finished(reason, statistics)

    def resize(self, *, kv: str | None, experts: str | None) -> str:
        budget, room = parse_kv(kv) if kv else None, parse_experts(experts) if experts else None
        state, _ = self.load()
        answer = Front(self._paths.socket).resize(state.name, budget, room)
        # From now on the new sizes are what was asked for; the old ones would be a mismatch at the next question.
        self._config = replace(
            self._config,
            kv=budget or self._config.kv,
            experts=room or self._config.experts,
            context=self._config.context if budget is None else None,
        )
        self._state, self._attached_at = ModelState.from_json(answer["after"]), -math.inf
        return "\n".join([resize_line(answer), *answer["notes"]])

    def save_context(self, messages: Sequence[Message], think: bool | None, path: Path) -> str:
        # Never loads the model: one that is gone has no context any more.
        name = self._model if self._state is None else self._state.name
        body: dict[str, Any] = {
            "model": name,
            "messages": list(messages),
            "path": str(path.absolute()),
            **_thinking(think),
        }
        answer = Front(self._paths.socket).save_context(body)
        return f"Saved its context: {answer['tokens']} tokens, {format_size(answer['bytes'])}."

    def load_context(self, path: Path) -> str:
        state = self._attached()
        answer = Front(self._paths.socket).load_context(state.name, path.absolute())
        rest = "" if answer["tokens"] == answer["total"] else f" of {answer['total']}, for which there is no room"
        return f"Restored the context: {answer['tokens']} tokens{rest}."

    def state(self) -> list[tuple[str, str]]:
        state, _ = self.load()
        return [
            ("model", state.name),
            ("size", format_size(state.size)),
            ("device", state.place),
            *([("card", f"{state.device_text}, {format_size(state.device_total)}")] if state.device_text else []),
            *([("experts", state.cache.removeprefix("experts "))] if state.cache else []),
            ("kv", state.kv),
            ("context", str(state.context)),
            ("until", time_left(state.until, time.time())),
            ("sampling", _listed(self._defaults) or "as the model says"),
        ]
