"""What goes over the link comes back the same, and nothing else is taken for a message."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base import errors
from engine.base.spelling import CharacterEdges, Spelling
from engine.base.units import KvBudget
from engine.memory.lookup import Reuse, ReuseReason
from engine.worker.protocol import (
    FROM_FRONT,
    FROM_WORKER,
    ExpertCache,
    ExpertWork,
    Failed,
    Generate,
    Grammar,
    Message,
    Passages,
    Resize,
    Sampling,
    ThoughtBound,
    TokenLogprob,
    Tokens,
    WorkerConfig,
)
from engine.worker.wire import LineBuffer, decode, encode

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
scores = st.builds(TokenLogprob, finite, st.lists(st.tuples(st.integers(0, 99), finite), max_size=3).map(tuple))
steps = st.dictionaries(st.integers(0, 9), st.lists(st.integers(-1, 9), max_size=3).map(tuple))
spelling = st.builds(Spelling, st.integers(1, 9), steps, st.booleans())
spellings = st.lists(spelling, max_size=2).map(tuple)
counts = st.dictionaries(st.integers(0, 9), st.integers(1, 3))
edges = st.builds(CharacterEdges, counts, counts)
grammars = st.builds(
    Grammar,
    text=st.text(),
    after=st.none() | spelling,
    unless=st.none() | spelling,
    aside=st.none() | st.builds(Passages, spellings, spellings, st.booleans()),
    again=st.booleans(),
    begun=st.none() | ids,
)
sampling = st.builds(
    Sampling,
    grammars=st.lists(grammars, max_size=2).map(tuple),
    thought=st.none()
    | st.builds(ThoughtBound, st.integers(0, 99), spellings, spellings, ids, st.booleans(), ids, edges),
    temperature=finite,
    seed=st.integers(-(2**63), 2**64),
    logit_bias=st.dictionaries(st.integers(0, 9), finite),
)
cache = st.none() | st.builds(ExpertCache, st.integers(0, 99), st.integers(0, 99), st.floats(0, 1))
work = st.none() | st.builds(ExpertWork, st.dictionaries(st.text(), finite), finite, st.text(), st.text())
REASONS = st.sampled_from(get_args(ReuseReason))
HARD = {
    "sampling": sampling,
    "logprobs": st.lists(scores, max_size=3).map(tuple),
    "notes": st.lists(st.text(), max_size=3).map(tuple),
    "values": st.dictionaries(st.text(), finite),
    "prompt": ids,
    "stop_ids": ids,
    "ids": ids,
    "kv": st.none() | st.builds(KvBudget, st.integers(0, 99), st.integers(0, 99), st.floats(0, 1)),
    "cache": cache,
    "cache_before": cache,
    "cache_after": cache,
    "experts": work,
    "tokens": ids,
    "anchors": st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=3).map(tuple),
    "anchor_ids": st.dictionaries(st.integers(0, 9), st.booleans()),
    "anchor_runs": st.lists(st.tuples(ids, st.booleans()), max_size=3).map(tuple),
    "reuse": st.none()
    | st.builds(Reuse, st.integers(0, 99), st.integers(0, 99), st.sampled_from(get_args(ReuseReason))),
}


def messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    floats = {field.name: finite for field in fields(cls) if field.type == "float"}
    hard = {field.name: HARD[field.name] for field in fields(cls) if field.name in HARD}
    if cls is Resize:
        hard["experts"] = st.none() | st.text()
    return st.builds(cls, **floats, **hard)


@given(st.one_of([messages(cls) for cls in FROM_FRONT + FROM_WORKER]))
def test_every_message_survives_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


def test_every_kind_has_a_name_of_its_own() -> None:
    kinds = [cls.kind for cls in FROM_FRONT + FROM_WORKER]
    assert len(set(kinds)) == len(kinds)
    assert "" not in kinds


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"kind": "nothing"}',
        b'{"request": 1}',
        b'{"kind": "cancel"}',
        b'{"kind": "cancel", "request": 1, "more": 2}',
        b"\xff",
        b'"kind"',
        b'{"kind": []}',
        b'{"kind": "generate", "request": 1, "prompt": 5, "max_tokens": 1}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "sampling": 5}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "sampling": {"colour": 1}}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "sampling": {"logit_bias": [1]}}',
        b'{"kind": "tokens", "request": 1, "ids": [1], "logprobs": [{"top": []}]}',
        b'{"kind": "tokens", "request": 1, "ids": [1], "logprobs": [{"logprob": 1, "top": [[]]}]}',
        b'{"kind": "resized", "ticket": 1, "cache_after": {"slots": 1}}',
        b'{"kind": "resized", "ticket": 1, "cache_after": 3}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "anchors": [[1]]}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "anchors": [1]}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "anchor_runs": [[1, true]]}',
        b'{"kind": "generate", "request": 1, "prompt": [1], "max_tokens": 1, "anchor_ids": [[1, true]]}',
        b'{"kind": "cancel", "request": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is nobody's business
        decode(line)


@given(st.lists(st.binary().map(lambda data: data.replace(b"\n", b"")), max_size=6), st.data())
def test_lines_are_cut_right_wherever_the_stream_is(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    buffer, found = LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += buffer.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


@pytest.mark.parametrize(
    "kind", [errors.DoesNotFitError, errors.NoRoomError, errors.BusyError, errors.FreetokenError, errors.UsageError]
)
def test_errors_keep_their_type(kind: type[errors.FreetokenError]) -> None:
    message = decode(encode(Failed.of(kind("what", "do this"), request=4)))
    assert isinstance(message, Failed)
    error = message.exception()
    assert (type(error), error.message, error.remedy, message.request) == (kind, "what", "do this", 4)


@pytest.mark.parametrize("name", ["NoSuchError", "annotations", "__name__"])
def test_an_error_of_no_known_type_is_still_an_error(name: str) -> None:
    assert type(Failed(name, "what").exception()) is errors.FreetokenError


def test_a_configuration_survives_the_command_line() -> None:
    for kv in (None, KvBudget(bytes=5)):
        config = WorkerConfig("/models/a b", threads=2, kv=kv, parent=7)
        assert WorkerConfig.from_json(config.to_json()) == config


def test_the_front_can_read_the_protocol_without_arrays() -> None:
    code = "import sys, engine.worker.protocol; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("line", ["nonsense", '{"kind": "generate", "request": 1, "prompt": 5, "max_tokens": 1}'])
def test_a_worker_hears_that_the_front_sent_nonsense(line: str) -> None:
    code = (
        "import socket, sys; from engine.worker.link import Closed, Link\n"
        "ours, theirs = socket.socketpair(); link = Link(theirs); ours.sendall(sys.argv[1].encode() + b'\\n')\n"
        "try: link.receive(wait=True)\n"
        "except Closed as end: print(end)"
    )
    done = subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, timeout=20, check=False)
    assert "the front sent a bad message" in done.stdout


def test_logit_bias_keys_are_numbers_again() -> None:
    message: Any = decode(encode(Generate(1, (1,), 2, (), Sampling(logit_bias={5: 1.5}))))
    assert message.sampling.logit_bias == {5: 1.5}
    assert decode(encode(Tokens(1, (2,), (TokenLogprob(-1.0, ((2, -1.0),)),)))) == Tokens(
        1, (2,), (TokenLogprob(-1.0, ((2, -1.0),)),)
    )
