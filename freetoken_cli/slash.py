"""The commands of the REPL, as a table that `/?` prints and a test can walk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from engine.base.errors import UsageError
from engine.base.units import parse_experts, parse_kv
from freetoken_cli.chat import SAMPLING, Chat, Sampling, Statistics
from freetoken_cli.conversation import Conversation
from freetoken_cli.helppage import did_you_mean
from freetoken_cli.output import Output
from freetoken_cli.sessions import SavedSession


@dataclass
class Session:
    """What a REPL holds between two lines. `think` None leaves thinking to the model's own template; `saved` is the
    folder of named sessions, `own` the one that is gone on with, which is held."""

    chat: Chat
    output: Output
    conversation: Conversation
    sampling: Sampling
    saved: Path
    own: SavedSession | None = None
    think: bool | None = None
    verbose: bool = False
    last: Statistics | None = None


@dataclass(frozen=True)
class Slash:
    """A command: its usage, its meaning, and what it does with the session and the words after it.

    `more` are further usages with their meanings.
    """

    name: str
    usage: str
    summary: str
    act: Callable[[Session, list[str]], None]
    more: tuple[tuple[str, str], ...] = ()


def say(session: Session, text: str) -> None:
    """Tell the person at the REPL something; stderr, because stdout is for the model's words."""
    session.output.stderr.write(f"{text}\n")
    session.output.stderr.flush()


def table(session: Session, rows: list[tuple[str, str]]) -> None:
    """Print labels and values in two columns."""
    width = max((len(label) for label, _ in rows), default=0)
    for label, value in rows:
        say(session, f"  {label:<{width}}  {value}".rstrip())


def _set(session: Session, words: list[str]) -> None:
    match words:
        case ["system", *rest]:
            session.conversation.system = " ".join(rest)
            say(session, "The system prompt is set." if rest else "The system prompt is empty.")
        case ["greedy"]:
            session.sampling = replace(session.sampling, temperature=0.0)
            say(session, "temperature is 0: the likeliest token every time.")
        case ["verbose"] | ["quiet"]:
            session.verbose = words[0] == "verbose"
            say(session, "Statistics follow each answer." if session.verbose else "No statistics.")
        case [name, value]:
            session.sampling = session.sampling.with_text(name.replace("-", "_"), value)
            say(session, f"{name} is {value}.")
        case _:
            names = ", ".join(SAMPLING)
            raise UsageError("/set takes a name and a value.", f"Names: system, greedy, verbose, quiet, {names}.")


def _show(session: Session, words: list[str]) -> None:
    rows = [*session.chat.state(), ("system", session.conversation.system or "none")]
    given = session.sampling.request()
    rows += [(name, f"{given[name]:g}") for name in SAMPLING if name in given]
    rows.append(("messages", str(len(session.conversation.turns))))
    table(session, rows)


def _clear(session: Session, words: list[str]) -> None:
    session.conversation.turns.clear()
    say(session, "The conversation is empty.")


def _stats(session: Session, words: list[str]) -> None:
    if session.last is None:
        say(session, "No answer yet.")
    else:
        table(session, session.last.lines())


def _resize(session: Session, words: list[str]) -> None:
    values: dict[str, str | None] = {"kv": None, "experts": None}
    while words:
        name, *words = words
        name = name.removeprefix("--")
        if name not in values or not words:
            raise UsageError("/resize takes kv VALUE, experts VALUE, or both.", "For example: /resize kv 32k")
        values[name], *words = words
    if values["kv"] is None and values["experts"] is None:
        raise UsageError("/resize takes kv VALUE, experts VALUE, or both.", "For example: /resize kv 32k")
    if values["kv"] is not None:
        parse_kv(values["kv"])
    if values["experts"] is not None:
        parse_experts(values["experts"])
    say(session, session.chat.resize(kv=values["kv"], experts=values["experts"]))


def _save(session: Session, words: list[str]) -> None:
    saved = _saved("/save", session, words)
    is_ours = saved.folder is None or saved == session.own
    with nullcontext() if is_ours else saved.held():
        for line in saved.save(session.conversation, session.chat, session.think):
            say(session, line)


def _load(session: Session, words: list[str]) -> None:
    saved = _saved("/load", session, words)
    session.conversation = saved.load()
    say(session, f"Loaded {len(session.conversation.turns)} messages from {saved.name}.")
    for line in saved.load_context(session.chat):
        say(session, line)


def _saved(command: str, session: Session, words: list[str]) -> SavedSession:
    if not words:
        raise UsageError(f"{command} takes a name or a file.", f"For example: {command} rivers, or {command} chat.json")
    return SavedSession.named_or_file(session.saved, " ".join(words))


def _think(session: Session, words: list[str]) -> None:
    choices = {"on": True, "off": False, "auto": None}
    word = words[0] if words else ("off" if session.think else "on")
    if len(words) > 1 or word not in choices:
        raise UsageError("/think takes on, off or auto.")
    session.think = choices[word]
    said = {
        "on": "Thinking is on, if the model can.",
        "off": "Thinking is off.",
        "auto": "Thinking is up to the model.",
    }
    say(session, said[word])


def _help(session: Session, words: list[str]) -> None:
    rows = [row for command in COMMANDS for row in ((command.usage, command.summary), *command.more)]
    table(session, [*rows, ('"""', "Starts and ends a message of several lines."), ("Ctrl-C", "Stops the answer.")])


def _bye(session: Session, words: list[str]) -> None:
    raise EOFError


_MORE_OF_SET = (
    ("/set system TEXT", "Set the system prompt; without a text there is none."),
    ("/set greedy", "Take the likeliest token every time."),
    ("/set verbose|quiet", "Statistics after each answer, or none."),
)
COMMANDS: tuple[Slash, ...] = (
    Slash("/set", "/set NAME VALUE", f"Set {', '.join(SAMPLING)}; the value default undoes it.", _set, _MORE_OF_SET),
    Slash("/show", "/show", "Show the model and the settings in force.", _show),
    Slash("/clear", "/clear", "Forget the conversation.", _clear),
    Slash("/stats", "/stats", "Statistics of the last answer.", _stats),
    Slash("/resize", "/resize kv 32k", "Move the model's memory, live.", _resize),
    Slash("/save", "/save NAME|FILE", "Keep the conversation and its computed context.", _save),
    Slash("/load", "/load NAME|FILE", "Go on with a saved conversation.", _load),
    Slash("/think", "/think on|off|auto", "Let the model think first, if it can.", _think),
    Slash("/?", "/?", "This list.", _help),
    Slash("/bye", "/bye", "Leave (so does Ctrl-D).", _bye),
)


def perform(session: Session, line: str) -> None:
    """Carry out a line that starts with a slash. Raises EOFError to leave, FreetokenError for what went wrong."""
    name, *words = line.split()
    by_name = {command.name: command for command in COMMANDS}
    by_name["/help"] = by_name["/?"]
    if name not in by_name:
        raise UsageError(f"{name} is no command.{did_you_mean(name, list(by_name))}", "/? lists them.")
    by_name[name].act(session, words)
