"""Messages as bytes: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from engine.base.spelling import CharacterEdges, Spelling
from engine.memory.lookup import Reuse
from engine.memory.retention import Anchor
from engine.worker.protocol import (
    FROM_FRONT,
    FROM_WORKER,
    ExpertCache,
    ExpertWork,
    Grammar,
    Message,
    Passages,
    Sampling,
    ThoughtBound,
    TokenLogprob,
    read_kv,
)

_KINDS = {cls.kind: cls for cls in FROM_FRONT + FROM_WORKER}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return (json.dumps({"kind": message.kind, **vars(message)}, default=vars, separators=(",", ":")) + "\n").encode()


def decode(line: bytes) -> Message:
    """The message of a line. ValueError for anything that `encode` could not have written."""
    try:
        content = json.loads(line)
        cls = _KINDS[content.pop("kind")]
        return cls(**{name: _READERS[name](value) if name in _READERS else value for name, value in content.items()})
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not a message: {error!r}") from None


def _read_sampling(value: dict[str, Any]) -> Sampling:
    bias = {int(token): amount for token, amount in value.pop("logit_bias", {}).items()}
    grammars = tuple(map(_read_grammar, value.pop("grammars", ())))
    thought = value.pop("thought", None)
    return Sampling(
        **value, logit_bias=bias, grammars=grammars, thought=None if thought is None else _read_bound(thought)
    )


def _read_grammar(value: dict[str, Any]) -> Grammar:
    markers = {name: value[name] and _read_spelling(value[name]) for name in ("after", "unless")}
    aside = value["aside"] and Passages(**{**value["aside"], **_read_edges(value["aside"])})
    begun = None if value["begun"] is None else tuple(value["begun"])
    return Grammar(**{**value, **markers, "aside": aside, "begun": begun})


def _read_edges(value: dict[str, Any]) -> dict[str, tuple[Spelling, ...]]:
    return {name: tuple(map(_read_spelling, value[name])) for name in ("opens", "closes")}


def _read_bound(value: dict[str, Any]) -> ThoughtBound:
    ids = {name: tuple(value[name]) for name in ("closing", "barred")}
    edges = {
        name: {int(token): count for token, count in counts.items()} for name, counts in value["characters"].items()
    }
    return ThoughtBound(**{**value, **_read_edges(value), **ids, "characters": CharacterEdges(**edges)})


def _read_spelling(value: dict[str, Any]) -> Spelling:
    steps = {int(token): tuple(row) for token, row in value.pop("steps").items()}
    return Spelling(**value, steps=steps)


def _read_cache(value: dict[str, Any] | None) -> ExpertCache | None:
    return None if value is None else ExpertCache(**value)


def _read_work(value: Any) -> Any:
    """The work of a `Done` or of `Stats`; the text of a `Resize`."""
    return ExpertWork(**value) if isinstance(value, dict) else value


def _read_anchors(value: Any) -> tuple[Anchor, ...]:
    return tuple((int(position), bool(opens)) for position, opens in value)


def _read_runs(value: Any) -> tuple[tuple[tuple[int, ...], bool], ...]:
    return tuple((tuple(map(int, run)), bool(opens)) for run, opens in value)


def _read_anchor_ids(value: dict[str, Any]) -> dict[int, bool]:
    return {int(token): bool(opens) for token, opens in value.items()}


def _read_reuse(value: dict[str, Any] | None) -> Reuse | None:
    return None if value is None else Reuse(**value)


def _read_logprobs(value: list[dict[str, Any]]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(item["logprob"], tuple((pair[0], pair[1]) for pair in item["top"])) for item in value)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "prompt": tuple, "tokens": tuple, "stop_ids": tuple, "ids": tuple, "notes": tuple, "sampling": _read_sampling,
    "logprobs": _read_logprobs, "kv": read_kv, "cache": _read_cache, "cache_before": _read_cache,
    "cache_after": _read_cache, "experts": _read_work, "anchors": _read_anchors, "anchor_ids": _read_anchor_ids,
    "anchor_runs": _read_runs, "reuse": _read_reuse,
}  # fmt: skip


class LineBuffer:
    """Cuts a byte stream into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newlines."""
        head, newline, rest = data.partition(b"\n")
        self._parts.append(head)
        if not newline:
            return []
        lines = [b"".join(self._parts), *rest.split(b"\n")]
        self._parts = [lines.pop()]
        return lines
