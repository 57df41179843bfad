"""A conversation: what was said, and its file form for `/save` and `/load`."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from engine.base.errors import (
    CorruptFileError,
    DoesNotFitError,
    FreetokenError,
    NotFoundError,
    UsageError,
    is_disk_full,
)
from engine.files.untrusted import read_small_file
from freetoken_cli.chat import Message

_FORMAT = "freetoken-conversation"
_VERSION = 1
_HOW_SAVED = "/save FILE writes one."
_ROLES = ("user", "assistant")


@dataclass
class Conversation:
    """The messages after the system prompt, in order."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """What the model is sent."""
        head: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self.turns.append({"role": role, "content": content})

    def save(self, path: Path) -> None:
        """Write the conversation to `path`, whole or not at all, for nobody else to read.

        Raises UsageError for a folder, DoesNotFitError where the disk is full, FreetokenError for other failures.
        """
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file: /save chat.json")
        document = {"format": _FORMAT, "version": _VERSION, "system": self.system, "messages": self.turns}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            try:
                temporary.touch(mode=0o600)
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            full = is_disk_full(error)
            raise (DoesNotFitError if full else FreetokenError)(
                f"The conversation is not saved: {path} cannot be written: {os.strerror(error.errno or errno.EIO)}.",
                "Free some space, or choose another place." if full else "Choose another place: /save FILE",
            ) from None

    @staticmethod
    def load(path: Path) -> Conversation:
        """Read what `save` wrote. Raises NotFoundError, or CorruptFileError for anything else than a conversation."""
        try:
            text = read_small_file(path)
        except NotFoundError:
            raise NotFoundError(f"There is no file {path}.", _HOW_SAVED) from None
        try:
            document = json.loads(text)
            # a lone half of a surrogate pair can be spelled in JSON, but neither be sent nor saved again
            json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{path} is not a saved conversation.", _HOW_SAVED) from error
        if not isinstance(document, dict) or document.get("format") != _FORMAT or document.get("version") != _VERSION:
            raise CorruptFileError(f"{path} is not a conversation that this release can read.", _HOW_SAVED)
        system, turns = document.get("system"), document.get("messages")
        if not isinstance(system, str) or not isinstance(turns, list):
            raise CorruptFileError(f"{path} is damaged: it lacks its messages.", _HOW_SAVED)
        conversation = Conversation(system)
        for turn in turns:
            match turn:
                case {"role": str(role), "content": str(content)} if role in _ROLES:
                    conversation.add(role, content)
                case _:
                    raise CorruptFileError(
                        f"{path} is damaged: message {len(conversation.turns) + 1} lacks its role or text.", _HOW_SAVED
                    )
        return conversation
