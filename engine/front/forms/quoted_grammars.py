"""Grammars of text, made into grammars of the JSON strings that hold such text.

A string of JSON escapes each character by itself and, as `json.dumps` does it, in one way. So the escaped forms of what
a grammar describes have a grammar too: the same, its literals and expressions escaped character by character. Escapes
begin alike, and llguidance looks one byte ahead for the end of a terminal; so the whole text becomes a single terminal,
of which all rules and terminals are parts. That is possible where no rule holds itself.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

START = "START"
"""What the terminal of the whole text is called, behind a prefix."""

_STRING = r'"(?:\\.|[^"\\\n])*"'
_LEXEMES = re.compile(
    rf"""
    (?P<ignored>(?:\#|//)[^\n]*|->[ \t]*\w+)
  | (?P<low>{_STRING})\s*\.\.\s*(?P<high>{_STRING})
  | (?P<string>{_STRING})(?P<caseless>i?)
  | /(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[imslux]*)
  | %import[ \t]+common\.(?P<common>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?
  | (?P<foreign>%\w+|<[^<>\s]+>|@|~(?!\s*\d))
  | (?P<name>[!?]*[a-zA-Z_][\w-]*)(?P<more>[ \t]*\[|[ \t]*\.[ \t]*[-\d]|[ \t]*{{(?![\d,])|)
    """,
    re.VERBOSE | re.DOTALL,
)
# Of Lark's common terminals those that hold characters with escapes, as Lark defines them; and those that hold none.
_COMMON = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
}
_PLAIN_COMMON = frozenset(
    (
        *("DIGIT", "HEXDIGIT", "INT", "SIGNED_INT", "DECIMAL", "FLOAT", "SIGNED_FLOAT", "NUMBER", "SIGNED_NUMBER"),
        *("LCASE_LETTER", "UCASE_LETTER", "LETTER", "WORD", "CNAME"),
    )
)

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|[^pPuUxbBAzGQEkK0-9])"
_PARTS = re.compile(
    rf"""
    (?P<open>\((?:\?(?:P?<\w+>|[imsuU-]*[:)]))?)
  | (?P<close>\))
  | (?P<operator>\||[*+?]|\{{\d*,?\d*\}})
  | (?P<one>\.|\[\^?\]?(?:{_ESCAPE}|[^\]\\\[])*\]|{_ESCAPE}|[^\[\]\\^$(){{}}])
    """,
    re.VERBOSE | re.DOTALL,
)
_SET_OPERATORS = ("&&", "--", "~~", "||")  # they mean one thing to Rust, and another to Python
_SPECIAL = [*map(chr, range(0x20)), '"', "\\"]
_NO_SPECIAL = r'[^\x00-\x1f"\\]'


class UnquotableError(ValueError):
    """A grammar for which no grammar of JSON strings is known."""


def quoted_grammar(lark: str, prefix: str) -> str:
    """Terminals of which START describes the JSON strings, without their quotes, of the texts that follow `lark`.

    `lark` is a grammar that llguidance takes; the names of all terminals get a `prefix`. UnquotableError where it holds
    more than rules, literals and expressions. Where a rule holds itself llguidance refuses the terminals.
    """
    return _LEXEMES.sub(lambda found: _quoted_lexeme(found, prefix), lark)


def _quoted_lexeme(found: re.Match[str], prefix: str) -> str:
    if found["ignored"] is not None:
        return ""
    if found["low"] is not None:
        low, high = (_in_set(json.loads(found[end])) for end in ("low", "high"))
        return f"/{_quoted_regex(f'[{low}-{high}]', '')}/"
    if found["string"] is not None:
        return _quoted_string(json.loads(found["string"]), found["caseless"])
    if found["regex"] is not None:
        return f"/{_quoted_regex(found['regex'], found['flags'])}/{found['flags']}"
    if found["name"] is not None and not found["more"]:
        return _renamed(found["name"], prefix)
    name = _renamed(found["alias"] or found["common"] or "", prefix)
    if found["common"] in _COMMON:
        return f"{name}: /{_quoted_regex(_COMMON[found['common']], '')}/"
    if found["common"] in _PLAIN_COMMON:
        return f"%import common.{found['common']} -> {name}"
    raise UnquotableError(found[0])


def _renamed(name: str, prefix: str) -> str:
    """What a rule or a terminal is called."""
    name = name.lstrip("!?")
    return f"{prefix}{name.upper()}" if name == name.lower() else f"{prefix}T-{name}"


def _quoted_string(text: str, caseless: str) -> str:
    escaped = _escaped(text)
    if caseless and escaped != text:
        raise UnquotableError(text)  # the letters of escapes have a case
    return json.dumps(escaped) + caseless


def _in_set(char: str) -> str:
    """A character as a set of an expression spells it."""
    return char if char.isalnum() or char > "\xff" else f"\\x{ord(char):02x}"


def _quoted_regex(pattern: str, flags: str) -> str:
    """The expression of what `pattern` matches, escaped: what of it matches one character is replaced."""
    if not set(flags) <= set("imsu"):
        raise UnquotableError(flags)
    dot_is_all = ["s" in flags]  # in each group that is open
    at, parts = 0, list[str]()
    while at < len(pattern):
        part = _PARTS.match(pattern, at)
        if part is None:
            raise UnquotableError(pattern[at:])
        at = part.end()
        if part["one"] is not None:
            parts.append(_quoted_one(part[0], dot_is_all[-1]))
            continue
        parts.append(part[0])
        if part["close"] is not None:
            dot_is_all.pop()
        elif part["open"] is not None:
            _open(part[0], pattern[at : at + 1], dot_is_all)
    return "".join(parts)


def _open(group: str, following: str, dot_is_all: list[bool]) -> None:
    """Note what a dot is behind the beginning `group` of a group, or behind flags for the rest of one."""
    if group == "(" and following == "?":
        raise UnquotableError(group + following)
    on, _, off = ("", "", "") if "<" in group else group.partition("-")
    dots = "s" in on or (dot_is_all[-1] and "s" not in off)
    if group.endswith(")"):
        dot_is_all[-1] = dots
    else:
        dot_is_all.append(dots)


@lru_cache(maxsize=256)
def _quoted_one(one: str, dot_is_all: bool) -> str:
    """The expression of the escaped forms of the characters that `one` matches."""
    if one[0] == "[" and any(operator in one for operator in _SET_OPERATORS):
        raise UnquotableError(one)
    try:
        matches = re.compile(one, re.ASCII | (re.DOTALL if dot_is_all else re.NOFLAG)).fullmatch
    except re.error:
        raise UnquotableError(one) from None
    escapes = [_escaped(char)[1:] for char in _SPECIAL if matches(char)]  # without their backslash
    if not escapes:
        return one
    forms = [rf"(?-i:\\(?:{'|'.join(map(re.escape, escapes))}))"]
    if one == ".":
        forms.append(_NO_SPECIAL)
    elif one[0] == "[" or one[1:] in [*"sSdDwW"]:
        forms.append(f"[{one}&&{_NO_SPECIAL}]")
    return f"(?:{'|'.join(forms)})"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
