"""Grammars of escaped text beside those of the text itself, both as llguidance follows them."""

from __future__ import annotations

import json
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.front.forms.quoted_grammars import UnquotableError, quoted_grammar
from tests.server.running_front import IM_END, make_tokenizer
from tests.unit.fake_executor import VOCAB

TOKENIZER = make_tokenizer()
PATCH = r"""
start: begin hunk+ end   // as a coding agent has it
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " filename LF add_line+ -> add | "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF
%import common.LF
"""
GRAMMARS = {
    "a patch": (PATCH, "*** Begin Patch\n*** Add File: a\\b\n+say \"x\"\n+\n*** End Patch"),
    "literals": (r'start: ("a\"" | "\n" | "\\" | "/" | "\u0001é")+', 'a"\n\\/\x01é'),
    "sets": (r'start: /[^\n"a]+[\\"\n]?/', 'b\t\\"'),
    "classes of characters": (r"start: /\s\S\d\D\w\W/", '\n"1\\a\t'),
    "a dot": ("start: /a.b/ /(?s:.)/ /(?s)./ /(?-s:.)/s", "a\tb\n\n\\"),
    "no case": (r"start: /A\n[b\t]/i", "a\nB"),
    "a range": (r'start: (" ".."~")+ ("é".."ê")?', '"\\aé'),
    "common terminals": (
        "start: S\nS: ESCAPED_STRING NEWLINE INT SPACE WS_INLINE\n%import common.ESCAPED_STRING\n"
        "%import common.NEWLINE\n%import common.INT\n%import common.WS -> SPACE\n%import common.WS_INLINE",
        '"a\\"b"\r\n\n12\n \t ',
    ),
    "counts and groups": (
        'start: S\nS: A{2,3} B~2..4 [ "x" ]\nA: /(?:\\n|(?P<n>\\")){1,2}/\nB: "\\t"', '\n"\n\t\tx'
    ),
    "both of two": ("start: Z\nZ: X & Y\n" r'X: /[\na"]+/' "\n" r'Y: /[^"]+/', "a\n\na"),
}  # fmt: skip


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(TOKENIZER.to_str(), VOCAB, IM_END)


def matcher(lark: str) -> LLMatcher:
    made = LLMatcher(vocabulary(), lark, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def follows(text: str, lark: str) -> bool:
    made = matcher(lark)
    tokens = TOKENIZER.encode(text).ids
    return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()


def quoted_terminal(lark: str) -> str:
    return f"start: A-START\n{quoted_grammar(lark, 'A-')}"


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@pytest.mark.parametrize(("lark", "text"), GRAMMARS.values(), ids=GRAMMARS)
def test_a_text_is_followed_escaped_where_it_is_followed_itself(lark: str, text: str) -> None:
    quoted = quoted_terminal(lark)
    assert follows(text, lark), "the sample is none"
    assert follows(escaped(text), quoted)
    shuffled = random.Random(0)
    for _ in range(60):
        other = list(text)
        for _ in range(shuffled.randint(1, 2)):
            place, char = shuffled.randrange(len(other)), shuffled.choice([*text, "\n", '"', "\\", "\x1f", "b", ""])
            other[place] = char
        changed = "".join(other)
        assert follows(changed, lark) == follows(escaped(changed), quoted), changed


@pytest.mark.parametrize(("lark", "text"), GRAMMARS.values(), ids=GRAMMARS)
def test_whatever_is_written_by_it_is_a_string_of_a_text_that_follows(lark: str, text: str) -> None:
    liked = TOKENIZER.encode(escaped(text)).ids
    for seed in range(12):
        chooses, written = random.Random(seed), matcher(quoted_terminal(lark))
        tokens: list[int] = []
        while len(tokens) < 80:
            bits = np.unpackbits(np.frombuffer(written.compute_bitmask(), np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[:256]).tolist()  # single bytes
            if not allowed:
                break
            near = [token for token in liked if token in allowed]
            tokens.append(chooses.choice(near if near and chooses.random() < 0.7 else allowed))
            written.consume_token(tokens[-1])
        told = whole_text(bytes_of(tokens))
        taken = TOKENIZER.encode(told).ids
        assert matcher(lark).try_consume_tokens(taken) == len(taken), told


def bytes_of(tokens: list[int]) -> bytes:
    return b"".join(vocabulary().decode_bytes([token]) for token in tokens)


def whole_text(written: bytes) -> str:
    """The text of the beginning of a JSON string, without the part of a character at its end."""
    for end in range(len(written), -1, -1):
        try:
            return str(json.loads(b'"' + written[:end] + b'"'))
        except ValueError:
            continue
    raise AssertionError(written)


@pytest.mark.parametrize(
    "lark",
    [
        'start: %json {"type": "object"}',
        "start: <think>",
        "start: @other",
        'start: "a"\n%ignore " "',
        'start[lazy]: "a"',
        'start: X\nX: ~"a"',
        'start: "a\\n"i',
        r"start: /\p{L}/",
        r"start: /[[a-c]&&[b]]/",
        r"start: /[a-c--b]/",
        "start: /a b/x",
        "start: C_COMMENT\n%import common.C_COMMENT",
        "start: /^a$/",
    ],
)
def test_what_cannot_be_escaped_for_certain_is_not(lark: str) -> None:
    with pytest.raises(UnquotableError):
        quoted_grammar(lark, "X-")


@given(st.text(st.characters(codec="utf-8"), max_size=6))
@settings(max_examples=50, deadline=None)
def test_any_text_can_be_a_literal(text: str) -> None:
    assert follows(escaped(text), quoted_terminal(f"start: {json.dumps(text)}"))
