"""How each pre-tokenizer that GGUF files name (`tokenizer.ggml.pre`) cuts text before merges.

The names are llama.cpp's; the steps are those of the checkpoints' own tokenizer.json, written in its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Step = dict[str, Any]


@dataclass(frozen=True)
class PreTokenizer:
    """The steps before merges, as tokenizer.json writes them."""

    steps: tuple[Step, ...]
    nfc: bool = False
    """Text is brought to Unicode's normal form C first."""
    ignore_merges: bool = False
    """A word that is a token as a whole stays whole, whatever the merges say."""
    add_bos: bool = False
    """Texts begin with the start token unless the file says otherwise."""


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(use_regex: bool) -> Step:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _digits(individual: bool) -> Step:
    return {"type": "Digits", "individual_digits": individual}


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_CAPITAL_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"


def _tiktoken(digits: str, letters: str = r"\p{L}") -> str:
    """The pattern of cl100k and its kin: contractions, words, runs of `digits`, punctuation, spaces."""
    others = r"\p{L}\p{N}" if letters == r"\p{L}" else r"\p{L}\p{M}\p{N}"
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{others}]+[\r\n]*|{_SPACES}"


_LLAMA3 = _tiktoken(r"\p{N}{1,3}")
_QWEN2 = _tiktoken(r"\p{N}")
_QWEN35 = _tiktoken(r"\p{N}", r"[\p{L}\p{M}]")
_GPT4O = (
    rf"{_CASED_WORD}{_CONTRACTIONS}?|{_CAPITAL_WORD}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_CASED_WORD}|{_CAPITAL_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
# What Kimi's own tokenization_kimi.py has: words of other scripts never hold Han.
_NOT_HAN = r"&&[^\p{Han}]"
_UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{_NOT_HAN}]"
_LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{_NOT_HAN}]"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"  # Han, hiragana, katakana
_DEEPSEEK3 = (
    "[!\"#$%&'()*+"
    r",\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# The letters of the scripts with capitals, as deepseek-llm lists them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_AND_WIDE_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"

_GPT2 = PreTokenizer((_bytes(use_regex=True),))
_STARCODER = PreTokenizer((_digits(individual=True), _bytes(use_regex=True)))
_LLAMA_BPE = PreTokenizer((_split(_LLAMA3), _bytes(use_regex=False)), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = PreTokenizer((_split(_LLAMA3), _bytes(use_regex=False)))
_QWEN = PreTokenizer((_split(_QWEN2), _bytes(use_regex=False)), nfc=True)
_GLM4 = PreTokenizer((_split(_LLAMA3), _bytes(use_regex=False)), ignore_merges=True)
_O200K = PreTokenizer((_split(_GPT4O), _bytes(use_regex=False)))
# Digits in threes from the right: 1 234 567.
_COHERE = PreTokenizer((_split(r"\d{1,3}(?=(?:\d{3})*\b)"), _split(_GPT4O), _bytes(use_regex=False)))
_DEEPSEEK_V3 = PreTokenizer((_split(r"\p{N}{1,3}"), _split(_CJK), _split(_DEEPSEEK3), _bytes(use_regex=False)))
_DEEPSEEK_LLM = PreTokenizer(
    (
        _split("[\r\n]"),
        _split(rf"\s?[{_CASED_LETTERS}]+"),
        _split(rf"\s?[{_ASCII_AND_WIDE_MARKS}]+"),
        _split(r"\s+$"),
        _split(_HAN_AND_HANGUL),
        _digits(individual=True),
        _bytes(use_regex=False),
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        _split("[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(_HAN_AND_HANGUL),
        _digits(individual=True),
        _bytes(use_regex=False),
    )
)
_BAILING = PreTokenizer(
    (
        _split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        _bytes(use_regex=False),
    )
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        **dict.fromkeys(("default", "gpt-2", "mpt", "jais", "exaone4", "trillion", "granite-docling"), _GPT2),
        **dict.fromkeys(("phi-2", "mellum", "gigachat", "a.x-4.0"), _GPT2),
        "olmo": PreTokenizer(_GPT2.steps, nfc=True),
        **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _STARCODER),
        "command-r": PreTokenizer(_STARCODER.steps, nfc=True),
        **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "lfm2"), _LLAMA_BPE),
        **dict.fromkeys(("pixtral", "midm-2.0"), _LLAMA_BPE),
        **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_MERGED),
        **dict.fromkeys(("glm4", "glm5"), _GLM4),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _QWEN),
        **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), PreTokenizer(_QWEN.steps)),
        "laguna": PreTokenizer((_split(r"[^\n]+|\n+"), _split(_QWEN2), _bytes(use_regex=False))),
        "qwen35": PreTokenizer((_split(_QWEN35), _bytes(use_regex=False)), nfc=True),
        **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _O200K),
        **dict.fromkeys(("tiny_aya", "cohere2moe"), _COHERE),
        "tekken": PreTokenizer((_split(_TEKKEN), _bytes(use_regex=False)), ignore_merges=True, add_bos=True),
        **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _DEEPSEEK_V3),
        "kimi-k2": PreTokenizer((_split(_KIMI), _bytes(use_regex=False)), ignore_merges=True),
        "deepseek-llm": _DEEPSEEK_LLM,
        "deepseek-coder": _DEEPSEEK_CODER,
        **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    }
)
"""By the name in the file."""
