"""Grammars that a process beside the worker follows, and what becomes of them when that process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.base.errors import FreetokenError, UnsupportedError, UsageError
from engine.base.spelling import LOST, Spelling
from engine.worker.constraint import Constraint, Grammars
from engine.worker.protocol import Grammar
from tests.server.running_front import IM_END, eventually, make_tokenizer
from tests.unit.fake_executor import VOCAB

TOKENIZER = make_tokenizer()
A, B, C, X, SPACE = (TOKENIZER.encode(character).ids[0] for character in "abcx ")


@pytest.fixture
def grammars(tmp_path: Path) -> Iterator[Grammars]:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    made = Grammars(tmp_path / "tokenizer.json", VOCAB)
    yield made
    made.close()


def allowed(constraint: Constraint) -> set[int]:
    return set(np.flatnonzero(np.isfinite(constraint.restrict(np.zeros(VOCAB, np.float32)))).tolist())


def children() -> set[int]:
    own = os.getpid()
    return {int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()}


def test_answers_beside_each_other_follow_their_own_grammars(grammars: Grammars) -> None:
    first = grammars.constraint(Grammar('start: "a" /[bc]/'), (IM_END,))
    second = grammars.constraint(Grammar('start: "b"'), (IM_END,))
    assert allowed(first) == {A}
    assert allowed(second) == {B}
    first.take(A)
    second.take(B)
    second.close()
    assert allowed(first) == {B, C}
    first.take(C)
    assert allowed(first) == {IM_END}


def test_a_grammar_begins_and_ends_where_it_is_told_to(grammars: Grammars) -> None:
    two = Spelling(2, {X: (1, 2)})
    constraint = grammars.constraint(Grammar('start: "a"', after=two, then_free=True), (IM_END,))
    for token in (X, C, X, X):
        assert len(allowed(constraint)) == VOCAB
        constraint.take(token)
    assert allowed(constraint) == {A}
    constraint.take(A)
    for token in (C, X, X):
        assert len(allowed(constraint)) == VOCAB
        constraint.take(token)


def test_an_answer_may_begin_with_a_marker_instead_of_its_grammar(grammars: Grammars) -> None:
    """The marker is "xc". Space before it is what the grammar allows, and no more."""
    marker = Spelling(2, {X: (1, LOST), C: (LOST, 2), SPACE: (0, LOST)}, first=True)
    grammar = Grammar('start: / /? "ab"', unless=marker)
    kept = grammars.constraint(grammar, (IM_END,))
    assert allowed(kept) == {SPACE, A, X}
    kept.take(SPACE)
    assert allowed(kept) == {A, X}
    kept.take(A)
    assert allowed(kept) == {B}
    left = grammars.constraint(grammar, (IM_END,))
    left.take(X)
    assert allowed(left) == {C}
    for token in (C, A, X):
        left.take(token)
        assert len(allowed(left)) == VOCAB


def test_what_cannot_be_followed_is_said_and_nobody_else_suffers(grammars: Grammars, tmp_path: Path) -> None:
    sound = grammars.constraint(Grammar('start: "a"'), (IM_END,))
    broken = grammars.constraint(Grammar("start: nowhere"), (IM_END,))
    with pytest.raises(UsageError, match="cannot be used") as error:
        broken.check()
    assert "\n" not in str(error.value)
    broken.close()
    large = grammars.constraint(Grammar('start: "b" X\nX: /(a{1000}){1000}/'), (IM_END,))
    large.take(B)
    with pytest.raises(UsageError, match="too many"):
        allowed(large)
    strayed = grammars.constraint(Grammar('start: "ab"'), (IM_END,))
    strayed.take(C)
    with pytest.raises(FreetokenError, match="cannot be followed"):
        allowed(strayed)
    assert allowed(sound) == {A}
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="tokenizer cannot be used"):
        Grammars(tmp_path / "odd.json", VOCAB).constraint(Grammar('start: "a"'), ()).check()
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        Grammars(None, VOCAB).constraint(Grammar('start: "a"'), ())


def test_another_process_takes_over_from_one_that_was_killed(grammars: Grammars) -> None:
    before = children()
    lost = grammars.constraint(Grammar('start: "ab"'), (IM_END,))
    assert allowed(lost) == {A}
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    lost.take(A)
    assert not lost.ready
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(FreetokenError, match="has ended"):
        allowed(lost)
    lost.close()
    assert allowed(grammars.constraint(Grammar('start: "c"'), (IM_END,))) == {C}
    grammars.close()
    assert children() == before


def test_a_long_grammar_keeps_nobody_waiting(grammars: Grammars) -> None:
    """Far more than a socket holds, for a process that is not reading."""
    before = children()
    constraint = grammars.constraint(Grammar('start: "a"'), (IM_END,))
    assert allowed(constraint) == {A}
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    letters = " | ".join(['"a"'] * 300_000)
    long = grammars.constraint(Grammar(f"start: /b/ // {letters}\n"), (IM_END,))
    constraint.take(A)
    assert not long.ready
    os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: long.ready)
    assert allowed(long) == {B}
    assert allowed(constraint) == {IM_END}
