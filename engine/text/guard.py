"""Keeps the control tokens of a prompt apart from text that merely looks like them.

A chat template writes control tokens as text (`<|im_start|>`), and so can a user. To tell the two apart, the tokens
that the template's own literals contain are *sealed* before it runs: their first character is replaced by a
noncharacter that no text may hold. The tokenizer that encodes prompts knows control tokens in sealed form alone, so
whatever a user writes, in any spelling, however the template cuts and joins it, stays ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.base.errors import UnsupportedError
from engine.text.folder import AddedToken

# Unicode sets U+FDD0..U+FDEF aside for internal use; they never stand in text that is exchanged (section 23.7).
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_BREAK, *_SEALS = _NONCHARACTERS
# What no prompt may hold: our own marks, and the halves of surrogate pairs that JSON escapes can smuggle in.
_FOREIGN = re.compile("[\ufdd0-\ufdef\ud800-\udfff]")

# Some vocabularies (Gemma's) hold HTML tags as added tokens. They are ordinary words of a web page, not control.
_HTML_TAGS = frozenset(
    f"<{slash}{name}>"
    for slash in ("", "/")
    for name in (
        *("a", "b", "blockquote", "body", "br", "caption", "code", "div", "em", "footer", "h1", "h2", "h3", "h4"),
        *("h5", "h6", "head", "header", "hr", "html", "i", "img", "li", "ol", "p", "pre", "s", "span", "strong"),
        *("sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"),
    )
)


def is_control(token: AddedToken, template_text: str) -> bool:
    """Whether text from outside must not produce `token`. `template_text` is the source of all chat templates.

    Special tokens always; of the others those that the template writes or that look like markup (`<tool_call>`,
    `[INST]`). Added tokens that are plain text stay plain: single characters (some checkpoints pad with `!`), runs
    of spaces, letters, HTML tags.
    """
    text = token.content
    blank = not text.replace("\u2581", " ").strip()
    if blank or len(text) == 1 or (text.isalnum() and not token.special):
        return False
    if token.special or text in template_text:
        return True
    framed = len(text) > 2 and not text[0].isalnum() and not text[-1].isalnum()
    return framed and text not in _HTML_TAGS


class Guard:
    """The sealed spelling of every control token, and the way back."""

    def __init__(self, control: Sequence[AddedToken]) -> None:
        self._control = tuple(control)
        firsts = sorted({token.content[0] for token in control})
        if len(firsts) > len(_SEALS):
            raise UnsupportedError(
                f"The tokenizer's control tokens begin with {len(firsts)} different characters; "
                f"at most {len(_SEALS)} are supported.",
                "Report the model's name.",
            )
        self._seal_of = dict(zip(firsts, _SEALS, strict=False))
        self._first_of = {seal: first for first, seal in self._seal_of.items()}
        self._seals = re.compile(any_of(self._first_of))
        self._any = _Tokens(token.content for token in control)
        self._soft = _Tokens(token.content for token in control if not token.special)

    def with_markers(self, markers: Iterable[str]) -> Guard:
        """A guard for these tokens and for `markers`, ordinary text that a model may write as well.

        UnsupportedError if they begin with too many different characters.
        """
        return Guard([*self._control, *(AddedToken(marker, special=False) for marker in sorted(markers))])

    @property
    def tokens(self) -> frozenset[str]:
        """Every control token."""
        return frozenset(token.content for token in self._control)

    def sealed(self, token: str) -> str:
        """The sealed spelling of one control token; as long as the token, so that templates may cut by length."""
        return self._seal_of[token[0]] + token[1:]

    def seal(self, text: str) -> str:
        """`text` of the template's own with every control token sealed."""
        return self._any.replace(text, self.sealed)

    def seal_soft(self, text: str) -> str:
        """`text` with the non-special control tokens sealed: what a model may write in its answers (`<think>`)."""
        return self._soft.replace(text, self.sealed)

    def unseal(self, text: str) -> str:
        """Sealed tokens as people read them."""
        return self._seals.sub(lambda found: self._first_of[found[0]], text)

    def find(self, text: str) -> frozenset[str]:
        """The control tokens that stand unsealed in `text`."""
        return frozenset(token for _, token in self._any.find(text))


def scrub(text: str) -> str:
    """`text` from outside without characters that no prompt may hold; each becomes U+FFFD."""
    return _FOREIGN.sub("\ufffd", text)


class Fence:
    """For templates that spell a token from pieces, such as `'<|' + role + '|>'`, which sealing cannot see.

    The tokens in question are looked for in the rendered text; so in text from outside they are broken beforehand,
    whole ones and halves at its ends that the template's text could complete. `remove` takes the marks out again.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        tokens = sorted(tokens)
        self._active = bool(tokens)
        self._whole = _Tokens(tokens)
        self._tail = re.compile(f"({any_of(token[:k] for token in tokens for k in range(1, len(token)))})(\\s*)$")
        self._head = re.compile(f"^(\\s*)(?={any_of(token[k:] for token in tokens for k in range(1, len(token)))})")

    def put(self, text: str) -> str:
        """`text` with a mark inside each token and beside each half token at an end."""
        if not self._active:
            return text
        text = self._whole.replace(text, lambda token: token[0] + _BREAK + token[1:])
        return self._head.sub(rf"\1{_BREAK}", self._tail.sub(rf"\1{_BREAK}\2", text))

    def seal_spelled(self, text: str, guard: Guard) -> str:
        """Rendered `text` with the tokens that the template spelled sealed, and the marks gone."""
        if not self._active:
            return text
        return self._whole.replace(text, guard.sealed).replace(_BREAK, "")


class _Tokens:
    """Finds tokens in a text from left to right, the longest at each place, also among thousands of tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        lengths: dict[str, set[int]] = {}
        for token in self._tokens:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile(any_of(self._lengths))

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Where each token begins, and the token."""
        end = 0
        for found in self._first.finditer(text):
            start = found.start()
            if start < end:
                continue
            words = (text[start : start + length] for length in self._lengths[found[0]])
            token = next((word for word in words if word in self._tokens), None)
            if token is not None:
                end = start + len(token)
                yield start, token

    def replace(self, text: str, spell: Callable[[str], str]) -> str:
        """`text` with every token as `spell` writes it."""
        pieces = []
        end = 0
        for start, token in self.find(text):
            pieces += [text[end:start], spell(token)]
            end = start + len(token)
        return "".join([*pieces, text[end:]])


def any_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words`; it matches nothing when there are none."""
    return "|".join(re.escape(word) for word in sorted(set(words), key=len, reverse=True)) or "(?!)"
