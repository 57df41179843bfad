"""What `run` and the REPL know of a loaded model: send messages, get pieces of text, then statistics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from engine.base.config import setting
from engine.base.errors import UsageError
from engine.base.sampling import PARAMETERS, Range
from engine.base.units import format_duration

Message = dict[str, str]  # role and content


def _reader(allowed: Range) -> Callable[[str], Any]:
    """A parser of the numbers of a range."""

    def parse(text: str) -> float:
        try:
            value = int(text) if allowed.whole else float(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a {'whole ' if allowed.whole else ''}number.") from None
        if allowed.problem(value):
            raise UsageError(f"{text} is outside {allowed.low:g} to {allowed.high:g}.")
        return value

    return parse


# What can be set about sampling, by flag (dashes for underscores) and by `/set`, and how its text is read.
SAMPLING: Mapping[str, Callable[[str], Any]] = {
    **{name: _reader(PARAMETERS[name].range) for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
    "max_tokens": setting("max_tokens").parse,
    "thinking_budget": _reader(Range(0, 2**31 - 1, whole=True)),
}


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. None: what the model says, or else `CHAT_DEFAULTS`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    thinking_budget: int | None = None

    @staticmethod
    def from_flags(flags: Mapping[str, str | None]) -> Sampling:
        """What was typed as flags. Raises UsageError that names the flag and the value."""
        sampling = Sampling()
        for name, text in flags.items():
            if text is not None:
                try:
                    sampling = sampling.with_text(name, text)
                except UsageError as error:
                    raise UsageError(f"--{name.replace('_', '-')}: {error.message}", error.remedy) from None
        return sampling

    def with_text(self, name: str, text: str) -> Sampling:
        """A copy with `name` read from `text`; `default` goes back to the model's own."""
        if name not in SAMPLING:
            raise UsageError(f"{name!r} is no parameter.", f"There are {', '.join(SAMPLING)}.")
        return replace(self, **{name: None if text == "default" else SAMPLING[name](text)})

    @property
    def shaped(self) -> bool:
        """Whether the user says anything about the distribution that a token is drawn from."""
        return any(value is not None for value in (self.temperature, self.top_p, self.top_k, self.min_p))

    def request(self) -> dict[str, Any]:
        """The fields of a chat request that say it."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Piece:
    """Some text of the answer, or of the thinking before it."""

    text: str
    thinking: bool = False


@dataclass(frozen=True)
class Statistics:
    """How an answer came about. Times in seconds, rates in tokens a second, bandwidths in GB/s; None: not measured.

    `reuse` says why no more of the prompt was reused.

    Of experts on a device: `misses_per_layer` m; how many misses were filled and how many computed, which are a
    `cpu_share` of all routed experts; the bandwidths of `link` and `host`, by the `clock` of a virtual machine if it
    has a name; the `fraction` of misses that are filled, and `why`.
    """

    load: float | None = None
    prompt_tokens: int = 0
    prompt_rate: float | None = None
    reused_tokens: int = 0
    reuse: str | None = None
    generated_tokens: int = 0
    generated_rate: float | None = None
    first_token: float | None = None
    hit_rate: float | None = None
    misses_per_layer: float | None = None
    misses_filled: int | None = None
    misses_computed: int | None = None
    cpu_share: float | None = None
    link: float | None = None
    host: float | None = None
    clock: str | None = None
    fraction: float | None = None
    why: str | None = None
    memory: float | None = None

    @staticmethod
    def from_json(table: Mapping[str, Any]) -> Statistics:
        """The statistics in a server's answer; what it does not know stays unknown."""
        names = {field.name for field in fields(Statistics)}
        return Statistics(**{name: value for name, value in table.items() if name in names and value is not None})

    def lines(self) -> list[tuple[str, str]]:
        """Label and value of everything that is known, in the order people ask for it."""
        rows = [
            ("load", _seconds(self.load)),
            ("prompt", _tokens(self.prompt_tokens, self.prompt_rate)),
            ("reused", self._reused()),
            ("generated", _tokens(self.generated_tokens, self.generated_rate)),
            ("first token", _seconds(self.first_token)),
            ("expert hits", self._hits()),
            ("misses", self._misses()),
            ("link", _bandwidth(self.link, self.clock)),
            ("CPU experts", _bandwidth(self.host, self.clock)),
            ("split", "" if self.fraction is None else split_text(self.fraction, self.why or "")),
            ("memory", _bandwidth(self.memory)),
        ]
        return [(label, value) for label, value in rows if value]

    def _reused(self) -> str:
        return f"{self.reused_tokens} of {self.prompt_tokens} tokens" + (f": {self.reuse}" if self.reuse else "")

    def _hits(self) -> str:
        if self.hit_rate is None:
            return ""
        misses = "" if self.misses_per_layer is None else f", {self.misses_per_layer:.1f} misses a layer and step"
        return f"{self.hit_rate * 100:.1f}%{misses}"

    def _misses(self) -> str:
        if self.misses_filled is None and self.misses_computed is None:
            return ""
        share = "" if self.cpu_share is None else f" ({self.cpu_share * 100:.0f}% of experts)"
        return f"{self.misses_filled or 0} filled, {self.misses_computed or 0} computed on the CPU{share}"


def split_text(fraction: float, why: str) -> str:
    """The division of misses and its reason, which may begin with the fraction itself."""
    return why if why.startswith("f = ") else f"f = {fraction:.2f}: {why}".removesuffix(": ")


def _seconds(value: float | None) -> str:
    return "" if value is None else format_duration(value)


def _tokens(count: int, rate: float | None) -> str:
    return f"{count} tokens" + ("" if rate is None else f", {rate:.1f} tokens/s")


def _bandwidth(value: float | None, clock: str | None = None) -> str:
    """GB/s; those of a virtual machine are called so."""
    where = f" (virtual, {clock})" if clock else ""
    return "" if value is None else f"{value:.1f} GB/s{where}"


@dataclass(frozen=True)
class Finished:
    """The end of an answer: `stop`, `length` or another reason of the server's, and the statistics."""

    reason: str
    statistics: Statistics


Answer = Generator[Piece | Finished, None, None]


class Chat(Protocol):
    """A loaded model that answers."""

    def describe(self) -> str:
        """One line: model, device, slots and hit rate, context memory in force."""

    def answer(self, messages: Sequence[Message], sampling: Sampling, think: bool | None) -> Answer:
        """Stream an answer to `messages`; the last item is `Finished`. Closing the iterator stops the model.

        Raises FreetokenError when the model's process ends or refuses.
        """

    def resize(self, *, kv: str | None, experts: str | None) -> str:
        """Move memory; a line that tells before, after and the time."""

    def save_context(self, messages: Sequence[Message], think: bool | None, path: Path) -> str:
        """Write what the model has computed of `messages` to a file; a line that tells how much.

        Raises FreetokenError where nothing of it is known any more, or the file cannot be written.
        """

    def load_context(self, path: Path) -> str:
        """Take such a file into the model's memory; a line that tells how much. Raises FreetokenError."""

    def state(self) -> list[tuple[str, str]]:
        """Label and value of what `ps` and `show` tell about this model."""
