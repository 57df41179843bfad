"""Reasoning that is brought to its end: markers in tokens against markers in text, and the sampler against a plain
definition over text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.spelling import LOST, CharacterEdges, Spelling
from engine.front.chats import chat_prompt
from engine.front.openai_api.requests import read_chat
from engine.text.formats.known import CHANNELS, THOUGHTS
from engine.text.formats.parser import AnswerParser
from engine.text.formats.pieces import Said, Thought
from engine.text.formats.reasoning import thought_edges
from engine.text.formats.record import AnswerFormat, ThoughtFormat
from engine.text.spelling import candidates, character_edges, spell
from engine.text.text import Text
from engine.worker.protocol import Sampling, ThoughtBound
from engine.worker.sampler import Sampler
from tests.server.running_front import make_tokenizer

OPENS, CLOSES = "<t>", "</t>"
PIECES = [
    *"<>/t a",
    "<t",
    "t>",
    "</",
    "</t",
    "/t>",
    "><",
    "<<",
    "<t>",
    "</t>",
    "> ",
    " <",
    "a<",
    "</t>a",
    "t><t>",
    "  ",
]
TOKENS = [(token, piece.encode()) for token, piece in enumerate(PIECES)]
CLOSING = (PIECES.index("</t>"), PIECES.index(" "))
VOCAB = len(PIECES)

ANYWHERE = {marker: spell(marker, TOKENS) for marker in (OPENS, CLOSES, "<t><t>", "<<t")}
FIRST = spell(OPENS, TOKENS, first=True)

answers = st.lists(st.integers(0, VOCAB - 1), max_size=40)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def follow(spelling: Spelling, tokens: Sequence[int]) -> Iterator[int]:
    return itertools.accumulate(tokens, spelling.after, initial=0)


@given(tokens=answers, marker=st.sampled_from(list(ANYWHERE)))
def test_a_marker_is_found_where_the_text_has_it(tokens: list[int], marker: str) -> None:
    for count, spelled in enumerate(follow(ANYWHERE[marker], tokens)):
        text = text_of(tokens[:count])
        assert ANYWHERE[marker].complete(spelled) == (marker in text)
        if marker in text:
            assert (spelled > len(marker)) == bool(text.partition(marker)[2].strip())
            break
        assert text.endswith(marker[:spelled])
        assert not any(text.endswith(marker[:more]) for more in range(spelled + 1, len(marker)))


@given(tokens=answers)
def test_a_marker_that_must_come_first_is_lost_behind_anything_else(tokens: list[int]) -> None:
    for count, spelled in enumerate(follow(FIRST, tokens)):
        text = text_of(tokens[:count]).lstrip()
        if text.startswith(OPENS):
            assert spelled == len(OPENS)
            break
        assert spelled == (len(text) if OPENS.startswith(text) else LOST)


def test_every_token_that_has_a_part_in_a_marker_is_a_candidate() -> None:
    for marker, first in itertools.product((OPENS, CLOSES), (False, True)):
        named = [(token, piece.replace(" ", "Ġ")) for token, piece in enumerate(PIECES)]
        kept = [TOKENS[token] for token, name in named if candidates(marker).search(name)]
        assert spell(marker, kept, first) == spell(marker, TOKENS, first)


def bound(tokens: int, begun: bool) -> ThoughtBound:
    return ThoughtBound(tokens, (FIRST,), (ANYWHERE[CLOSES],), CLOSING, begun)


def wish(seed: int, told: Sequence[int]) -> int:
    """What the model would say next."""
    return random.Random(f"{seed} {told}").randrange(VOCAB)


def plain(seed: int, budget: int, begun: bool, count: int) -> list[int]:
    """What comes of the model's wishes under a budget: by the text so far, read anew for every token."""
    told: list[int] = []
    start, thinking, left = 0, begun, budget
    while len(told) < count:
        text = text_of(told[start:])
        if thinking and left <= 0 and not any(text.endswith(CLOSES[:part]) for part in range(1, len(CLOSES))):
            told += CLOSING
            start, thinking = len(told), False
            continue
        told.append(wish(seed, told))
        left -= thinking
        text = text_of(told[start:])
        if CLOSES in text if thinking else text.lstrip().startswith(OPENS):
            start, thinking = len(told), not thinking
    return told[:count]


def test_the_sampler_does_what_the_text_asks_for() -> None:
    closed = 0
    for seed, budget, begun in itertools.product(range(15), (0, 1, 2, 5), (False, True)):
        wanted = plain(seed, budget, begun, count=30)
        sampler = Sampler(Sampling(1.0, seed=seed, thought=bound(budget, begun)), ())
        told: list[int] = []
        while len(told) < len(wanted):
            logits = np.full(VOCAB, -1e4, np.float32)
            logits[wish(seed, told)] = 0.0
            told.append(sampler.choose(logits).token)
        assert told == wanted
        closed += any(told[at : at + 2] == list(CLOSING) for at in range(len(told)))
    assert closed > 50  # of 120, the rest of which ended or never began


def test_log_probabilities_are_the_models_own_and_penalties_count_the_closing_words() -> None:
    logits = np.linspace(0, 1, VOCAB, dtype=np.float32)
    free = Sampler(Sampling(0.0, logprobs=1), ()).choose(logits)
    sampler = Sampler(Sampling(0.0, logprobs=1, presence_penalty=2.0, thought=bound(0, begun=True)), ())
    closing = [sampler.choose(logits) for _ in CLOSING]
    assert [choice.token for choice in closing] == list(CLOSING)
    assert free.logprob is not None
    for choice in closing:
        assert choice.logprob is not None
        assert choice.logprob.top == free.logprob.top
        assert choice.logprob.logprob == pytest.approx(free.logprob.logprob + logits[choice.token] - 1, abs=1e-6)
    lowered = logits.copy()
    lowered[CLOSING[0]] += 1.5  # the most likely token, if it had not been said
    assert sampler.choose(lowered).token == VOCAB - 1


def test_behind_the_closing_words_what_would_begin_a_thought_again_is_barred() -> None:
    edges = thought_edges(AnswerFormat(channels=CHANNELS[0]), calls=True, formed=False)
    assert edges is not None
    assert edges.closing == ("<|end|><|start|>assistant", "<|channel|>")
    barred = tuple(token for token, piece in enumerate(PIECES) if piece in spelled_parts(edges.barred))
    assert barred
    thought = ThoughtBound(0, (ANYWHERE[OPENS],), (ANYWHERE[CLOSES],), CLOSING, begun=True, barred=barred)
    sampler = Sampler(Sampling(0.0, thought=thought), ())
    logits = np.zeros(VOCAB, np.float32)
    logits[barred[0]] = 1.0
    told = [sampler.choose(logits).token for _ in range(4)]
    assert told[:2] == list(CLOSING)
    assert told[2] not in barred  # and only there
    assert told[3] == barred[0]


def spelled_parts(marker: str) -> set[str]:
    return {marker[:count] for count in range(1, len(marker) + 1)}


def text_with(folder: Path, marks: Sequence[str], as_tokens: bool, words: Sequence[str] = ()) -> Text:
    """A vocabulary of bytes and `words`, and of the marks if they are tokens, with a template that names them."""
    make_tokenizer([*words, *(marks if as_tokens else ())]).save(str(folder / "tokenizer.json"))
    template = f"{{# {' '.join(marks)} #}}{{{{ messages[0].content }}}}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    return Text.load(folder)


def answers_of(text: Text, body: dict[str, Any], script: str, behind: str) -> tuple[str, str]:
    """Thought and text of a model that says `script`, and `behind` once its thought was brought to its end."""
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], **body})
    _, reader = chat_prompt(text, asked)
    assert reader.bound is not None
    sampler = Sampler(Sampling(0.0, thought=reader.bound), ())
    parser = AnswerParser(reader.form, reader.tools, reader.part)
    stream = text.stream((), markers=reader.form.markers)
    script_ids, behind_ids = text.encode_prompt(script, False), text.encode_prompt(behind, False)
    told: list[int] = []
    pieces = []
    while behind_ids:
        closed = tuple(told[-len(reader.bound.closing) :]) == reader.bound.closing
        script_ids = [] if closed else script_ids
        ids = script_ids or behind_ids
        logits = np.zeros(512, np.float32)
        logits[ids[0]] = 1.0
        token = sampler.choose(logits).token
        if token == ids[0]:
            ids.pop(0)
        told.append(token)
        pieces += parser.push(stream.push(token))
    pieces += [*parser.push(stream.finish()), *parser.finish()]
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    return thought, "".join(piece.text for piece in pieces if isinstance(piece, Said))


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize("form", THOUGHTS, ids=lambda form: form.region.closes[0])
def test_every_format_comes_to_its_answer(tmp_path: Path, form: ThoughtFormat, as_tokens: bool) -> None:
    marks = [
        *form.signs,
        *form.region.opens,
        *form.region.closes,
        *(form.text.opens + form.text.closes if form.text else ()),
    ]
    text = text_with(tmp_path, marks, as_tokens)
    behind = f"{form.text.opens[0]}Four.{form.text.closes[0]}" if form.text else "Four."
    opened = f"{form.region.opens[0]}\n{'Hm. ' * 20}"
    assert answers_of(text, {"thinking_budget": 10}, opened, behind) == ("Hm. Hm. H", "Four.")
    assert answers_of(text, {"thinking_budget": 99}, opened, behind)[0] != "Hm. Hm. H"


@pytest.mark.parametrize("tools", [False, True])
def test_channels_come_to_their_answer(tmp_path: Path, tools: bool) -> None:
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]
    text = text_with(tmp_path, marks, as_tokens=True)
    opened = f"<|channel|>analysis<|message|>{'Hm. ' * 20}"
    body: dict[str, Any] = {"thinking_budget": 10}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": "now"}}]
    behind = "final<|message|>Four.<|return|>" if tools else "Four.<|return|>"
    assert answers_of(text, body, opened, behind) == ("Hm. Hm. Hm", "Four.")


def test_a_grammar_begins_behind_a_marker_that_runs_into_other_text(tmp_path: Path) -> None:
    text = text_with(tmp_path, ["<think>", "</think>"], as_tokens=False, words=[">\n", "x</"])
    messages = [{"role": "user", "content": "<think>"}]
    _, reader = chat_prompt(
        text, read_chat({"model": "m", "messages": messages, "response_format": {"type": "json_object"}})
    )
    (grammar,) = reader.grammars
    marker = grammar.after
    assert marker is not None
    ids = text.encode_prompt("Hx</think>\n{", add_special=False)
    assert [text.token_bytes(token) for token in ids][-2:] == [b">\n", b"{"]
    assert list(follow(marker, ids))[-2] == marker.length


TOKEN_BYTES = [bytes([byte]) for byte in range(256)]  # which every vocabulary of bytes has
TOKEN_BYTES += ["€".encode()[:2], "€".encode()[1:], b"a\xf0\x9f", b"\x98\x80b", "é".encode(), "é€".encode()[1:3]]
END = len(TOKEN_BYTES)  # the closing word


@given(st.text(st.sampled_from("aé€😀"), max_size=12), st.sets(st.integers(1, 40)))
def test_where_tokens_end_within_characters_shows_in_their_bytes(text: str, cuts: set[int]) -> None:
    content = text.encode()
    places = sorted({0, len(content)} | {cut for cut in cuts if cut < len(content)})
    edges = character_edges(enumerate(content[start:end] for start, end in itertools.pairwise(places)))
    borders = list(itertools.accumulate((len(char.encode()) for char in text), initial=0))
    lacking = 0
    for token, end in enumerate(places[1:]):
        lacking = edges.after(lacking, token)
        assert lacking == min(border for border in borders if border >= end) - end


@pytest.mark.parametrize("seed", range(40))
def test_a_thought_is_not_cut_within_a_character(seed: int) -> None:
    """Of a model that spells its text in whatever tokens."""
    chooses = random.Random(seed)
    content, budget = "".join(chooses.choices("aé€😀", k=40)).encode(), chooses.randrange(10)
    characters = character_edges(enumerate(TOKEN_BYTES))
    thought = ThoughtBound(budget, (), (), (END,), begun=True, characters=characters)
    sampler, told = Sampler(Sampling(0.0, thought=thought), ()), b""
    for count in itertools.count():  # noqa: B007 - it is looked at behind the loop
        fits = [content.startswith(told + piece) for piece in TOKEN_BYTES]
        logits = np.array([*(chooses.random() + 9 * fit for fit in fits), 0], np.float32)
        if (token := sampler.choose(logits).token) == END:
            break
        told += TOKEN_BYTES[token]
    assert budget <= count <= budget + 3
    assert content.startswith(told)
    told.decode()


def test_a_character_that_no_token_can_make_whole_holds_nothing_up() -> None:
    thought = ThoughtBound(1, (), (), (1,), begun=True, characters=CharacterEdges(lacking={0: 2}))
    sampler = Sampler(Sampling(0.0, thought=thought), ())
    assert [sampler.choose(np.array([1, 0], np.float32)).token for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("character", ["€", "😀"])
def test_the_tokens_of_a_vocabulary_are_known_by_their_looks(character: str, tmp_path: Path) -> None:
    text = text_with(tmp_path, ["<think>"], as_tokens=True, words=["word é"])
    ids = text.encode(f"a{character}b")
    edges = text.character_edges
    lacking = list(itertools.accumulate(ids, edges.after, initial=0))
    assert lacking == [0, 0, *range(len(character.encode()) - 1, -1, -1), 0]
    assert len(edges.filling) == 64
    assert len(edges.lacking) == 30 + 16 + 5
