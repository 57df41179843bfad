"""A loaded model that chats, through the front of its store."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.base.config import Config
from engine.base.errors import FreetokenError
from engine.base.paths import Paths
from engine.base.sampling import CHAT_DEFAULTS
from engine.base.units import format_size, parse_experts, parse_kv
from engine.front.workers.defaults import says_how_to_sample
from freetoken_cli.chat import Answer, Finished, Message, Piece, Sampling, Statistics
from freetoken_cli.client import Front, ModelState, in_force, load_request, resize_line, time_left
from freetoken_cli.front_process import ensure_front
from freetoken_cli.unix_http import FrontGone, stream

GRACE_SECONDS = 10.0


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
