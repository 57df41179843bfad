"""Saved sessions: a conversation, and beside it the context that the model computed of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import BusyError, CorruptFileError, FreetokenError, NotFoundError, UsageError
from engine.base.paths import typed_path
from engine.files.locks import lock_file
from freetoken_cli.chat import Chat
from freetoken_cli.conversation import Conversation

CONTEXT_SUFFIX = ".context"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def names_in(folder: Path) -> list[str]:
    """The sessions that were saved under a name in `folder`, which need not be there."""
    names = (path.stem for path in folder.glob("*.json"))
    return sorted(name for name in names if _NAME.fullmatch(name))


@dataclass(frozen=True)
class SavedSession:
    """Where a session is kept; `name` is how its user calls it. The `folder` is made where it is ours."""

    name: str
    conversation: Path
    folder: Path | None = None

    @property
    def context(self) -> Path:
        """The file of the context, which need not be there."""
        return self.conversation.with_name(self.conversation.name + CONTEXT_SUFFIX)

    @staticmethod
    def named(folder: Path, name: str) -> SavedSession:
        """The session `name` among those in `folder`. Raises UsageError for an impossible name."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r:.120} cannot be the name of a session.",
                "Use letters, digits, '.', '_' and '-', a letter or digit first, at most 100.",
            )
        return SavedSession(name, folder / f"{name}.json", folder)

    @staticmethod
    def named_or_file(folder: Path, text: str) -> SavedSession:
        """What `/save` and `/load` mean: a file if `text` has a slash or ends with .json, else a name."""
        if "/" in text or text.endswith(".json"):
            return SavedSession(text, typed_path(text))
        return SavedSession.named(folder, text)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the session from other processes, of which the last would undo what the others saved.

        Raises BusyError where one goes on with it already, FreetokenError where nothing can be saved.
        """
        self._make_folder()
        busy = BusyError(
            f"Another process goes on with the session {self.name}, and only one can save it.",
            "Wait until it ends, or give another name.",
        )
        with lock_file(self.conversation.with_name(f".{self.conversation.name}.lock"), busy):
            yield

    def save(self, conversation: Conversation, chat: Chat, think: bool | None) -> Iterator[str]:
        """Write the conversation, then the context; what to tell of it.

        Without its context a conversation can be gone on with, so what keeps the context from being saved is told and
        raises nothing.
        """
        self._make_folder()
        conversation.save(self.conversation)
        yield f"Saved {len(conversation.turns)} messages to {self.name}."
        if not conversation.turns:
            self.context.unlink(missing_ok=True)  # of what was said before; it can be gigabytes
            return
        try:
            yield chat.save_context(conversation.messages(), think, self.context)
        except FreetokenError as error:
            yield f"The context is not saved, so it will be computed again: {error}"

    def _make_folder(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what people say is theirs alone

    def load(self) -> Conversation:
        """The conversation. Raises NotFoundError or CorruptFileError."""
        if self.folder is not None and not self.conversation.exists():
            raise NotFoundError(f"There is no session {self.name}.", "/save NAME begins one.")
        try:
            return Conversation.load(self.conversation)
        except CorruptFileError as error:
            raise CorruptFileError(error.message, "Move that file away to begin anew, or give another name.") from error

    def load_context(self, chat: Chat) -> Iterator[str]:
        """Take the context into the model's memory, if there is one and it fits the model; what to tell of it."""
        if self.context.exists():
            try:
                yield chat.load_context(self.context)
            except FreetokenError as error:
                yield f"The context is not restored, so it will be computed again: {error}"
