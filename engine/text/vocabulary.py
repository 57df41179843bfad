"""The tokenizer of a checkpoint, and its guarded twin that reads control tokens in sealed form alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.base.errors import CorruptFileError
from engine.base.spelling import CharacterEdges, Spelling
from engine.text.decoding import Decoding
from engine.text.encoded_parts import EncodedParts, PartCache
from engine.text.folder import AddedToken, TextFiles
from engine.text.guard import Guard, any_of, is_control
from engine.text.spelling import PARTS_OF_CHARACTERS, candidates, character_edges, spell

if TYPE_CHECKING:
    import tokenizers

_FILLER = "\ufdd0filler"  # begins with a character that scrubbed text cannot hold


class Vocabulary:
    """Token ids of text, by a `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, template_text: str) -> None:
        """`template_text` is the source of the chat templates; it decides which added tokens are control tokens."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = {token: _read_added(entry) for token, entry in tokenizer.get_added_tokens_decoder().items()}
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        # llguidance takes added tokens in angle brackets for special ones, whatever is said of them.
        self._unspelt = {
            entry.content: token
            for token, entry in added.items()
            if entry.special or re.fullmatch("<.*>", entry.content, re.DOTALL)
        }
        control = {token: entry for token, entry in added.items() if is_control(entry, template_text)}
        self.control_ids = frozenset(control)
        self.guard = Guard(list(control.values()))
        self._guarded, self._id_of_guarded, sealed = _guarded_twin(tokenizer, added, control, self.guard)
        self._control = re.compile(any_of(entry.content for entry in sealed))
        self._separate = frozenset(
            entry.content
            for entry in sealed
            if not entry.lstrip and (tokenizer.normalizer is None or not entry.normalized)
        )
        self._parts = PartCache(self._encode_parts)
        self._forgeable = frozenset(
            token for token, entry in control.items() if tokenizer.model.id_to_token(token) == entry.content
        )
        self.decoding = Decoding(tokenizer, added)

    @classmethod
    def load(cls, files: TextFiles) -> Vocabulary:
        """Reads tokenizer.json and adds the tokens that the other files name and it lacks, as transformers does."""
        import tokenizers

        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:  # the library raises bare Exception
            raise CorruptFileError(f"{files.tokenizer} cannot be read: {error}.", "Fetch the file again.") from error
        known = {entry.content for entry in tokenizer.get_added_tokens_decoder().values()}
        for token, entry in files.added_tokens.items():
            if entry.content in known:
                continue
            tokenizer.add_tokens([_library_token(entry)])
            if tokenizer.token_to_id(entry.content) != token:
                raise CorruptFileError(
                    f"tokenizer_config.json says that {entry.content!r} is token {token}, "
                    f"but in {files.tokenizer} it would be {tokenizer.token_to_id(entry.content)}.",
                    "Fetch the tokenizer files again.",
                )
            known.add(entry.content)
        named = dict.fromkeys([*files.named_tokens.values(), *files.extra_special])
        in_vocabulary = [text for text in named if text not in known and tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens(in_vocabulary)
        return cls(tokenizer, "\n".join(files.templates.values()))

    def id_of(self, text: str) -> int | None:
        """The id of the token written `text`."""
        token: int | None = self._tokenizer.token_to_id(text)
        return token

    def text_of(self, token: int) -> str:
        """How the vocabulary writes `token`; nothing for an id that it lacks."""
        return self._tokenizer.id_to_token(token) or ""

    def spelling(self, marker: str, first: bool) -> Spelling:
        """How tokens spell `marker`: anywhere, or as the first thing but for space."""
        looks = candidates(marker)
        found = [token for text, token in self._tokenizer.get_vocab().items() if looks.search(text)]
        return spell(marker, ((token, self.decoding.token_bytes(token)) for token in found), first)

    def cut(self, words: str) -> list[str | int]:
        """`words` cut at the tokens among them that grammars of text do not spell, these as their ids."""
        found = {content: token for content, token in self._unspelt.items() if content in words}
        return [found.get(part, part) for part in re.split(f"({any_of(found)})", words) if part] if found else [words]

    def character_edges(self) -> CharacterEdges:
        """Which tokens end within a character."""
        if self.decoding.byte_level:
            looks = PARTS_OF_CHARACTERS
            found = [token for text, token in self._tokenizer.get_vocab().items() if looks.search(text)]
        else:
            found = list(self.decoding.byte_tokens)
        return character_edges((token, self.decoding.token_bytes(token)) for token in found)

    def encode_raw(self, text: str, add_special: bool) -> list[int]:
        """Ids of `text` as the checkpoint's tokenizer sees it, control tokens included."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        return ids

    def encode_sealed(self, text: str) -> EncodedParts:
        """Ids of `text`, in which sealed control tokens count as such and all else is plain.

        It is cut before control tokens that have no part in how the text before them is read, so that the ids of all
        parts together are those of the whole, and parts that were encoded before are known.
        """
        places = [found.start() for found in self._control.finditer(text) if found[0] in self._separate]
        parts = [text[start:end] for start, end in pairwise((0, *places, len(text))) if start < end] or [text]
        return EncodedParts(parts, self._parts.ids_of(parts), self._spans)

    def _encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        encodings = self._guarded.encode_batch_fast(list(parts), add_special_tokens=False)
        return [self._real_ids(encoding.ids) for encoding in encodings]

    def _real_ids(self, ids: list[int]) -> list[int]:
        if not self._forgeable.isdisjoint(ids):
            ids = [part for token in ids for part in self._plain_ids(token)]
        real = self._id_of_guarded
        return [real.get(token, token) for token in ids]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        encoding = self._guarded.encode(text, add_special_tokens=False)
        return [
            span for token, span in zip(encoding.ids, encoding.offsets, strict=True) for _ in self._plain_ids(token)
        ]

    def _plain_ids(self, token: int) -> list[int]:
        """`token`, or other tokens of the same text if it is a control token that the model made of plain text.

        Merges can yield one where they were derived from a SentencePiece vocabulary: `<s` and `>` become `<s>`.
        """
        if token not in self._forgeable:
            return [token]
        text = self.text_of(token)
        halves = [part.id for half in (text[:1], text[1:]) for part in self._tokenizer.model.tokenize(half)]
        return [part for half in halves for part in self._plain_ids(half)]

    def control_positions(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Index and id of each control token among `ids`."""
        control = self.control_ids
        return ((index, token) for index, token in enumerate(ids) if token in control)


def _guarded_twin(
    tokenizer: tokenizers.Tokenizer, added: dict[int, AddedToken], control: dict[int, AddedToken], guard: Guard
) -> tuple[tokenizers.Tokenizer, dict[int, int], list[AddedToken]]:
    """A tokenizer that shares model, normaliser and pre-tokenizer, with control tokens under their sealed names.

    Everything else about added tokens stays (whether they swallow spaces, what counts as the start of a text), so
    that ids equal those of the original. Returns it with the real ids of the tokens that got other ones, and the
    control tokens as it has them.
    """
    # a token in the middle of a word counts too: what the template writes is meant
    entries = {
        token: replace(entry, content=guard.sealed(entry.content), single_word=False) if token in control else entry
        for token, entry in sorted(added.items())
    }
    twin, twin_ids = _twin(tokenizer, entries)
    for token in control:
        # A normaliser may alter the token's own text so that it is never found; then look for it before.
        entry = entries[token]
        if entry.normalized and twin_ids[token] not in twin.encode(f"a{entry.content}a").ids:
            entries[token] = replace(entry, normalized=False)
    twin, twin_ids = _twin(tokenizer, entries)
    if any(twin.model.id_to_token(new) not in (None, entries[token].content) for token, new in twin_ids.items()):
        # The model's ids have holes, so new ids fell on old ones; start above them.
        fillers = max(tokenizer.get_vocab(with_added_tokens=False).values()) + 1
        twin, twin_ids = _twin(tokenizer, entries, fillers - tokenizer.get_vocab_size(with_added_tokens=False))
    sealed = [entries[token] for token in sorted(control)]
    return twin, {new: token for token, new in twin_ids.items() if new != token}, sealed


def _twin(
    tokenizer: tokenizers.Tokenizer, entries: Mapping[int, AddedToken], fillers: int = 0
) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """A tokenizer with the same steps but these added tokens, and the id it gives to each."""
    import tokenizers

    twin = tokenizers.Tokenizer(tokenizer.model)  # shared, not copied
    if tokenizer.normalizer is not None:
        twin.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        twin.pre_tokenizer = tokenizer.pre_tokenizer
    twin.add_tokens([f"{_FILLER}{k}" for k in range(fillers)])
    twin.add_tokens([_library_token(entry) for entry in entries.values()])
    ids = {token: twin.token_to_id(entry.content) for token, entry in entries.items()}
    return twin, {token: new for token, new in ids.items() if new is not None}


def _library_token(entry: AddedToken) -> tokenizers.AddedToken:
    import tokenizers

    return tokenizers.AddedToken(**asdict(entry))


def _read_added(entry: tokenizers.AddedToken) -> AddedToken:
    names = [field.name for field in fields(AddedToken)]
    return AddedToken(**{name: getattr(entry, name) for name in names})
