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
from engine.worker.protocol import Grammar, Passages
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


def begin(grammars: Grammars, grammar: Grammar) -> Constraint:
    (constraint,) = grammars.constraints([grammar], (IM_END,))
    return constraint


def allowed(constraint: Constraint) -> set[int]:
    return set(np.flatnonzero(np.isfinite(constraint.restrict(np.zeros(VOCAB, np.float32)))).tolist())


def children() -> set[int]:
    own = os.getpid()
    return {int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()}


def test_answers_beside_each_other_follow_their_own_grammars(grammars: Grammars) -> None:
    first = begin(grammars, Grammar('start: "a" /[bc]/'))
    second = begin(grammars, Grammar('start: "b"'))
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
    constraint = begin(grammars, Grammar('start: "a"', after=two, then_free=True))
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
    kept = begin(grammars, grammar)
    assert allowed(kept) == {SPACE, A, X}
    kept.take(SPACE)
    assert allowed(kept) == {A, X}
    kept.take(A)
    assert allowed(kept) == {B}
    left = begin(grammars, grammar)
    left.take(X)
    assert allowed(left) == {C}
    for token in (C, A, X):
        left.take(token)
        assert len(allowed(left)) == VOCAB


def test_a_grammar_holds_again_at_every_marker_outside_of_what_is_passed_over(grammars: Grammars) -> None:
    """The marker is "xx"; what stands between "b" and "c" is passed over."""
    two, aside = Spelling(2, {X: (1, 2)}), Passages((Spelling(1, {B: (1,)}),), (Spelling(1, {C: (1,)}),))
    constraint = begin(grammars, Grammar('start: "ab"', after=two, then_free=True, again=True, aside=aside))
    for token in (B, X, X, C, X, C, X, X):
        assert len(allowed(constraint)) == VOCAB
        constraint.take(token)
    for _ in range(2):
        assert allowed(constraint) == {A}
        constraint.take(A)
        constraint.take(B)
        for token in (A, C, X, X):
            assert len(allowed(constraint)) == VOCAB
            constraint.take(token)
    assert allowed(constraint) == {A}


def test_a_grammar_goes_on_where_the_prompt_has_begun_it(grammars: Grammars) -> None:
    marker = Spelling(1, {X: (1,)})
    constraint = begin(grammars, Grammar('start: "ab"', marker, then_free=True, again=True, begun=(A,)))
    assert allowed(constraint) == {B}
    constraint.take(B)
    assert len(allowed(constraint)) == VOCAB
    constraint.take(X)
    assert allowed(constraint) == {A}


def test_no_token_ends_a_marker_and_begins_what_the_grammar_has_to_see(grammars: Grammars) -> None:
    """The marker is "xx", and of the two other tokens one is "xa" and one "x "."""
    constraint = begin(grammars, Grammar('start: "a"', after=Spelling(2, {X: (1, 2), A: (0, 3), SPACE: (0, 2)})))
    assert A in allowed(constraint)
    constraint.take(X)
    assert set(range(VOCAB)) - allowed(constraint) == {A}
    constraint.take(SPACE)
    assert allowed(constraint) == {A}


def test_nobody_waits_for_a_grammar_that_has_not_begun(grammars: Grammars) -> None:
    before = children()
    assert allowed(begin(grammars, Grammar('start: "a"'))) == {A}
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    later = begin(grammars, Grammar('start: "b"', after=Spelling(1, {X: (1,)})))
    assert later.ready
    later.check()
    assert not begin(grammars, Grammar('start: "b"')).ready
    later.take(X)
    assert not later.ready
    os.kill(pid, signal.SIGCONT)
    assert allowed(later) == {B}


def test_what_cannot_be_followed_is_said_and_nobody_else_suffers(grammars: Grammars, tmp_path: Path) -> None:
    sound = begin(grammars, Grammar('start: "a"'))
    broken = begin(grammars, Grammar("start: nowhere"))
    with pytest.raises(UsageError, match="cannot be used") as error:
        broken.check()
    assert "\n" not in str(error.value)
    broken.close()
    large = begin(grammars, Grammar('start: "b" X\nX: /(a{1000}){1000}/'))
    large.take(B)
    with pytest.raises(UsageError, match="too many"):
        allowed(large)
    strayed = begin(grammars, Grammar('start: "ab"'))
    strayed.take(C)
    with pytest.raises(FreetokenError, match="cannot be followed"):
        allowed(strayed)
    assert allowed(sound) == {A}
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="tokenizer cannot be used"):
        begin(Grammars(tmp_path / "odd.json", VOCAB), Grammar('start: "a"')).check()
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        begin(Grammars(None, VOCAB), Grammar('start: "a"'))


def test_another_process_takes_over_from_one_that_was_killed(grammars: Grammars) -> None:
    before = children()
    lost = begin(grammars, Grammar('start: "ab"'))
    assert allowed(lost) == {A}
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    lost.take(A)
    assert not lost.ready
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(FreetokenError, match="has ended"):
        allowed(lost)
    lost.close()
    assert allowed(begin(grammars, Grammar('start: "c"'))) == {C}
    grammars.close()
    assert children() == before


def test_a_long_grammar_keeps_nobody_waiting(grammars: Grammars) -> None:
    """Far more than a socket holds, for a process that is not reading."""
    before = children()
    constraint = begin(grammars, Grammar('start: "a"'))
    assert allowed(constraint) == {A}
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    letters = " | ".join(['"a"'] * 300_000)
    long = begin(grammars, Grammar(f"start: /b/ // {letters}\n"))
    constraint.take(A)
    assert not long.ready
    os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: long.ready)
    assert allowed(long) == {B}
    assert allowed(constraint) == {IM_END}
