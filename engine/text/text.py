"""Text to token ids and back: the one object that the front holds for each model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import CorruptFileError, UnsupportedError, UsageError
from engine.text.folder import read_text_files
from engine.text.guard import scrub
from engine.text.stream import Stream
from engine.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engine.text.template import Template

_CLOSING_WORDS = frozenset({"end", "eot", "eom", "eos", "endoftext"})


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    ids: list[int]
    anchors: tuple[int, ...]
    """Edges of turns, ascending: the number of ids before a control token that opens something, and up to and
    with one that closes something. Edges at the very beginning are left out."""
    text: str


class Text:
    """The tokenizer, chat templates and end tokens of one checkpoint. Thread-safe."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        templates: Mapping[str, str],
        variables: Mapping[str, str],
        eos_ids: frozenset[int],
    ) -> None:
        """`templates` are chat templates by name, `variables` the named special tokens that they may write."""
        self._vocabulary = vocabulary
        self._sources = dict(templates)
        self._variables = dict(variables)
        self._compiled: dict[str, Template] = {}
        self.eos_ids = eos_ids
        """Every token that ends an answer, by any file of the checkpoint."""

    @classmethod
    def load(cls, folder: Path) -> Text:
        """Reads a checkpoint's tokenizer.json, tokenizer_config.json, chat template and generation config.

        Raises NotFoundError without a tokenizer.json, CorruptFileError or UnsupportedError for files that this
        release cannot read.
        """
        files = read_text_files(folder)
        vocabulary = Vocabulary.load(files)
        eos_ids = set(files.eos_ids)
        eos_text = files.named_tokens.get("eos_token")
        eos_id = None if eos_text is None else vocabulary.id_of(eos_text)
        if eos_id is not None:
            eos_ids.add(eos_id)
        elif eos_text is not None and not eos_ids:
            raise CorruptFileError(
                f"{folder} names {eos_text!r} as its end token, which its tokenizer.json does not have.",
                "Fetch the tokenizer files again.",
            )
        return cls(vocabulary, files.templates, files.named_tokens, frozenset(eos_ids))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> Prompt:
        """The prompt for a conversation, by the checkpoint's own template.

        For ordinary conversations text and ids equal those of transformers' `apply_chat_template`. Control tokens
        come from the template alone; see `engine.text.conversation` for the one exception. Raises UsageError naming
        the message that is wrong, UnsupportedError when the checkpoint has no usable template.
        """
        from engine.text.conversation import Conversation
        from engine.text.template import TemplateFailureError

        template = self._template(with_tools=tools is not None)
        conversation = Conversation(self._vocabulary.guard, template.fence, template.traits)
        plain = conversation.messages(messages)
        variables = {
            "documents": None,
            **{name: conversation.data(value, f"The variable {name}") for name, value in template_variables.items()},
            "tools": None if tools is None else conversation.data(list(tools), "The list of tools"),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            sealed = _render(template, plain, variables)
        except TemplateFailureError as error:
            raise UsageError(f"{error.message}{_where(template, plain, variables)}", error.remedy) from error
        return self._prompt(template.fence.seal_spelled(sealed, self._vocabulary.guard))

    def encode(self, text: str) -> list[int]:
        """The ids of plain text: whatever it holds, none of them is a control token."""
        return self._vocabulary.encode_sealed(scrub(text))

    def encode_prompt(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of a raw prompt, in which control tokens are read as such: who completes text writes all of it.

        `add_special` puts in what the tokenizer adds to a text of its own accord, usually a start token.
        """
        return self._vocabulary.encode_raw(scrub(text), add_special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`, by default without special tokens."""
        stream = self.stream((), skip_special)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, stop: Sequence[str] = (), skip_special: bool = True) -> Stream:
        """A stream at the start of an answer that ends before the first of the strings `stop`."""
        skipped = self._vocabulary.special_ids if skip_special else frozenset[int]()
        return Stream(self._vocabulary.decoding.decoder(), stop, skipped)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in the middle of a text."""
        return self._vocabulary.decoding.token_bytes(token)

    def _template(self, with_tools: bool) -> Template:
        """The template for a conversation, compiled when first asked for. Choice as in transformers."""
        from engine.text.template import Template

        if not self._sources:
            raise UnsupportedError(
                "The model has no chat template, so it cannot chat.", "Use completions, or take its instruct version."
            )
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise UnsupportedError(
                f"The model has several chat templates ({', '.join(sorted(self._sources))}) and none is the default.",
                "Use completions.",
            )
        if name not in self._compiled:
            self._compiled[name] = Template(self._sources[name], self._vocabulary.guard, self._variables)
        return self._compiled[name]

    def _prompt(self, sealed: str) -> Prompt:
        ids = self._vocabulary.encode_sealed(sealed)
        anchors = set()
        for index, token in self._vocabulary.control_positions(ids):
            anchors.add(index + 1 if token in self.eos_ids or _closes(self._vocabulary.text_of(token)) else index)
        return Prompt(ids, tuple(sorted(anchors - {0})), self._vocabulary.guard.unseal(sealed))


def _render(template: Template, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """Renders; where messages lack content and the template cannot bear that, they get an empty one."""
    from engine.text.template import TemplateFailureError

    try:
        return template.render({**variables, "messages": messages})
    except TemplateFailureError:
        filled = [message if "content" in message else {**message, "content": ""} for message in messages]
        if filled == messages:
            raise
        return template.render({**variables, "messages": filled})


def _where(template: Template, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """Which message a failing template stumbles over: the last of the shortest beginning that fails, by bisection."""
    from engine.text.template import TemplateFailureError

    low, high = 0, len(messages)  # the first `low` messages render, the first `high` fail
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _render(template, messages[:middle], variables)
            low = middle
        except TemplateFailureError:
            high = middle
    return f" It stops at message {high}, with the role {messages[high - 1]['role']}."


def _closes(token: str) -> bool:
    """Whether a control token closes what another opened, by its spelling: `</think>`, `[/INST]`, `<|im_end|>`."""
    words = re.findall("[a-z]+", token.lower())
    return token[1:2] == "/" or not _CLOSING_WORDS.isdisjoint(words)
