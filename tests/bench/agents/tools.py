"""The tools of a coding agent and of an agent for mail and calendar, as OpenAI's interface describes tools.

Every argument is one of a few values, so that a model of random weights, held to the schema, calls them properly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Tool = Mapping[str, Any]

_FILES = ("src/parser.py", "src/ledger.py", "src/queue.py", "tests/test_parser.py", "README.md")
_PEOPLE = ("ada@example.org", "bela@example.org", "chidi@example.org", "dora@example.org")
_SLOTS = ("Monday 9:00", "Tuesday 14:00", "Thursday 11:00", "Friday 16:30")


def _tool(name: str, description: str, /, **arguments: Sequence[str]) -> Tool:
    properties = {argument: {"type": "string", "enum": list(values)} for argument, values in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def coding(project: str) -> tuple[Tool, ...]:
    """Read, search, edit and test; and hand a task to an agent of one's own."""
    return (
        _tool("read_file", f"Read a file of {project} and return its lines with their numbers.", path=_FILES),
        _tool("search", "Find every line in which a name is used.", word=("parse", "ledger", "queue"), path=_FILES),
        _tool("apply_fix", "Apply one of the fixes that were proposed.", path=_FILES, fix=("first", "second", "third")),
        _tool("run_tests", "Run the tests and return what failed.", path=_FILES, mode=("fast", "all")),
        _tool("start_agent", "Have another agent look into a question.", about=_FILES, effort=("low", "high")),
    )


def office(project: str) -> tuple[Tool, ...]:
    """Read and answer mail, look at a calendar and change it."""
    return (
        _tool("list_mail", f"List the mail of {project}'s inbox, newest first.", folder=("inbox", "sent", "later")),
        _tool("read_thread", "Read a thread as a whole.", sender=_PEOPLE, state=("unread", "any")),
        _tool(
            "answer_mail", "Answer with one of the usual texts.", to=_PEOPLE, answer=("yes", "no", "ask for more time")
        ),
        _tool("list_events", "List the events of a day.", day=("Monday", "Tuesday", "Thursday", "Friday")),
        _tool("add_event", "Put a meeting into the calendar.", guest=_PEOPLE, start=_SLOTS, length=("30 min", "1 h")),
    )


TOOLS = {"code": coding, "mail": office}
