"""Text to token ids and back: the one object that the front holds for each model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.base.spelling import CharacterEdges, Spelling
from engine.memory.retention import Anchor
from engine.text.anchors import closes, has_subject, merged, plain_markers
from engine.text.folder import read_text_files
from engine.text.guard import scrub
from engine.text.stream import Stream
from engine.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engine.text.formats.record import AnswerFormat
    from engine.text.rendering import Rendering


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    ids: list[int]
    anchors: tuple[Anchor, ...]
    """Edges of turns, thinking and tools, ascending: the number of ids before a marker that opens something (True),
    and up to and with one that closes something (False). Edges at the very beginning are left out."""
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
        self._compiled: dict[str, Rendering] = {}
        self._spellings: dict[tuple[str, bool], Spelling] = {}
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
        from engine.text.rendering import Asked

        asked = Asked(messages, tools, add_generation_prompt, template_variables)
        rendered = self._rendering(with_tools=tools is not None).render(asked)
        text = self._vocabulary.guard.unseal(rendered.sealed)
        encoded = self._vocabulary.encode_sealed(rendered.sealed)
        ids = encoded.ids
        return Prompt(ids, merged([*self.anchors(ids), *encoded.edges(rendered.edges)]), text)

    def anchors(self, ids: Sequence[int]) -> tuple[Anchor, ...]:
        """The edges that the control tokens among `ids` are, wherever these come from."""
        edges = self.anchor_ids
        controls = [(index, token) for index, token in self._vocabulary.control_positions(ids) if token in edges]
        return merged((index if edges[token] else index + 1, edges[token]) for index, token in controls)

    @cached_property
    def anchor_ids(self) -> Mapping[int, bool]:
        """Every token at which something opens (True) or with which something closes, for what a model generates.

        Of the control tokens those that templates write, that end an answer, or that are called after something that
        clients cut; vocabularies have thousands of unused ones. Besides, markers of the templates that are single
        ordinary tokens.
        """
        spelling = self._vocabulary.text_of
        written = "\n".join(self._sources.values())
        sources = "\n".join([written, *(text for name, text in self._variables.items() if name in written)])
        tokens = {token for token in self._vocabulary.control_ids if has_subject(spelling(token))}
        tokens |= {token for token in self._vocabulary.control_ids if spelling(token) in sources} | self.eos_ids
        markers = map(self._vocabulary.id_of, self._plain_markers)
        tokens |= {token for token in markers if token is not None}
        return {token: token not in self.eos_ids and not closes(spelling(token)) for token in sorted(tokens)}

    @cached_property
    def anchor_runs(self) -> tuple[tuple[tuple[int, ...], bool], ...]:
        """The same for markers that are several tokens each, as far as these depend on nothing around the marker.

        Its last character often shares a token with what follows, so it is left out.
        """
        before = self.encode("\n")
        runs = {}
        for marker in sorted(self._plain_markers):
            if self._vocabulary.id_of(marker) is None:
                ids = self.encode("\n" + marker[:-1])
                run = tuple(ids[len(before) :]) if ids[: len(before)] == before else ()
                if len(run) > 1:  # a single token would be a word that stands anywhere
                    runs[run] = not closes(marker)
        return tuple(runs.items())

    @cached_property
    def _plain_markers(self) -> frozenset[str]:
        return plain_markers(self._sources.values(), self._vocabulary.guard.tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text: whatever it holds, none of them is a control token."""
        return self._vocabulary.encode_sealed(scrub(text)).ids

    def encode_prompt(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of a raw prompt, in which control tokens are read as such: who completes text writes all of it.

        `add_special` puts in what the tokenizer adds to a text of its own accord, usually a start token.
        """
        return self._vocabulary.encode_raw(scrub(text), add_special)

    def spelling(self, marker: str, first: bool = False) -> Spelling:
        """How the tokens of an answer spell `marker`: anywhere, or as the first thing but for space."""
        key = (marker, first)
        if key not in self._spellings:
            self._spellings[key] = self._vocabulary.spelling(marker, first)
        return self._spellings[key]

    def spells(self, words: str) -> bool:
        """Whether ordinary tokens spell `words`: grammars of text know no others."""
        return self._vocabulary.special_ids.isdisjoint(self.encode_prompt(words, add_special=False))

    def cut(self, words: str) -> list[str | int]:
        """`words` cut at the tokens among them that grammars of text do not spell, these as their ids."""
        return self._vocabulary.cut(words)

    @cached_property
    def character_edges(self) -> CharacterEdges:
        """Where tokens end within characters."""
        return self._vocabulary.character_edges()

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`, by default without special tokens."""
        stream = self.stream((), skip_special)
        return "".join([*map(stream.push, ids), stream.finish()])

    def answer_format(self, with_tools: bool) -> AnswerFormat:
        """How the answers of a chat are read. Raises UnsupportedError when the checkpoint has no usable template."""
        return self._rendering(with_tools).answer_format

    def stream(self, stop: Sequence[str] = (), skip_special: bool = True, markers: Collection[str] = ()) -> Stream:
        """A stream at the start of an answer that ends before the first of the strings `stop`.

        Special tokens that are part of one of the `markers` are text like any other.
        """
        skipped = self._vocabulary.special_ids if skip_special else frozenset[int]()
        if markers:
            spelling = self._vocabulary.text_of
            skipped = frozenset(token for token in skipped if not any(spelling(token) in each for each in markers))
        return Stream(self._vocabulary.decoding.decoder(), stop, skipped)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in the middle of a text."""
        return self._vocabulary.decoding.token_bytes(token)

    def _rendering(self, with_tools: bool) -> Rendering:
        """The template for a conversation, compiled when first asked for. Choice as in transformers."""
        from engine.text.rendering import Rendering

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
            self._compiled[name] = Rendering(self._sources[name], self._vocabulary.guard, self._variables)
        return self._compiled[name]
