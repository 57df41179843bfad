"""Text that agents read: code, mail and calendars, drawn from a seed. Plausible words, nobody's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random

NAMES = ("Ada", "Bela", "Chidi", "Dora", "Emre", "Freya", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")
THINGS = (
    "parser", "ledger", "queue", "invoice", "route", "sensor", "archive", "budget", "token", "socket", "window",
    "label", "order", "harbour", "garden", "engine", "ticket", "bridge", "survey", "kettle",
)  # fmt: skip
DEEDS = ("open", "merge", "count", "check", "split", "send", "store", "close", "scan", "plan", "move", "trace")
PLACES = ("Room 4", "the library", "the north office", "a call", "the workshop", "the café downstairs")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def code(random: Random) -> Iterator[str]:
    """Functions of a Python file, without end."""
    while True:
        deed, thing, other = random.choice(DEEDS), random.choice(THINGS), random.choice(THINGS)
        number = random.randrange(1000)
        yield f"def {deed}_{thing}_{number}({thing}, {other}=None):\n"
        yield f'    """{deed.capitalize()} the {thing} that belongs to the {other}."""\n'
        yield f"    if {other} is None:\n        return {thing}.{random.choice(DEEDS)}({random.randrange(100)})\n"
        for _ in range(random.randrange(1, 4)):
            step = f"{random.choice(DEEDS)}_{random.choice(THINGS)}"
            yield f"    {thing} = {step}({thing}, {other}[{random.randrange(64)}])\n"
        yield f"    return {thing}\n\n"


def mail(random: Random) -> Iterator[str]:
    """Messages of a mailbox and entries of a calendar, without end."""
    while True:
        sender, reader = random.sample(NAMES, 2)
        thing, other = random.sample(THINGS, 2)
        day, hour = random.choice(DAYS), random.randrange(8, 18)
        if random.random() < 0.3:
            yield f"[event {random.randrange(9000)}] {day} {hour}:00 to {hour + 1}:30, {random.choice(PLACES)}: "
            yield f"{random.choice(DEEDS)} the {thing} with {sender} and {reader}\n"
            continue
        sent = f"{day} {hour}:{random.randrange(60):02}"
        yield f"[mail {random.randrange(9000)}] From: {sender}  To: {reader}  Sent: {sent}\n"
        yield f"Subject: the {thing} and the {other}\n"
        for _ in range(random.randrange(2, 6)):
            yield f"Could you {random.choice(DEEDS)} the {random.choice(THINGS)} before {random.choice(DAYS)}? "
            yield f"{random.choice(NAMES)} wants to {random.choice(DEEDS)} the {random.choice(THINGS)} first. "
        yield f"\nYours, {sender}\n\n"


KINDS: Mapping[str, Callable[[Random], Iterator[str]]] = {"code": code, "mail": mail}


def text(kind: str, random: Random, tokens: int, encode: Callable[[str], list[int]]) -> str:
    """The longest text of a kind that has at most `tokens` tokens, to within a word; at least a word."""
    pieces = KINDS[kind](random)
    drawn = ""
    while len(encode(drawn)) < tokens:
        drawn += "".join(islice(pieces, 8))
    words = drawn.split(" ")
    fewest, most = 1, len(words)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if len(encode(" ".join(words[:middle]))) <= tokens else (fewest, middle - 1)
    return " ".join(words[:fewest])
