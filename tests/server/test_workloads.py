"""The workloads of tests/bench/agents against a real, tiny model: each does what its description says."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from engine.text.text import Text
from tests.bench.agents.speaking import INTERFACES, Heard, ask_all
from tests.bench.agents.workloads import Ask, Setting, Step, converse, find
from tests.server.load_rig import FRONT, PAGE, long_store
from tests.server.running_front import RunningFront, start_front
from tests.turns.served import sayable

MODEL = "attention"
CONTEXT = 16384


@dataclass(frozen=True)
class Rig:
    """A front with the model loaded, and the model's text."""

    front: RunningFront
    text: Text


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    store = long_store(tmp_path_factory.mktemp("workloads"), (MODEL,))
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        front = start_front(store, Path(folder), script=FRONT)
        front.control("load", model=MODEL, context=CONTEXT, kv_tokens=2 * CONTEXT)
        yield Rig(front, Text.load(store / MODEL))
        assert front.stop() == 0


def carry_out(rig: Rig, name: str, run: int) -> list[list[tuple[Ask, Heard]]]:
    """Requests and what came back, those made at once together."""
    (workload,) = find([name])
    conversation = converse(workload, Setting(CONTEXT, rig.text, run))
    done = []
    asks = next(conversation)
    with httpx.Client(base_url=rig.front.url) as client:
        while True:
            heard = ask_all(client, INTERFACES[workload.interface], MODEL, asks, sayable(rig.text))
            done.append(list(zip(asks, heard, strict=True)))
            try:
                asks = conversation.send([each.answer for each in heard])
            except StopIteration:
                assert sum(map(len, done)) == workload.requests
                return done


def check_answer(ask: Ask, heard: Heard) -> None:
    """A text of the length that was asked for, or one call of the tools that follows its schema."""
    assert 0 < heard.first <= heard.total
    if ask.answer:
        assert (len(heard.answer.text) > 0, heard.answer.calls, heard.generated) == (True, (), ask.answer)
        return
    ((_, name, arguments),) = heard.answer.calls
    assert not heard.answer.text
    (schema,) = (tool["function"]["parameters"] for tool in ask.tools if tool["function"]["name"] == name)
    given = json.loads(arguments)
    assert sorted(given) == sorted(schema["required"])
    assert all(given[argument] in schema["properties"][argument]["enum"] for argument in given)


def check_length(ask: Ask, heard: Heard, step: Step, text: Text) -> None:
    """The prompt is as long as it should be, to within a word, and has the beginning of a call; tokens are bytes."""
    wanted = Setting(CONTEXT, text, 0).scaled(step.prompt)
    called = len('<tool_call>\n{"name": "') if not ask.answer else 0
    assert wanted + called - 24 < heard.prompt <= wanted + called


def test_a_coding_agents_turns_go_on_from_each_other(rig: Rig) -> None:
    turns = [turn for (turn,) in carry_out(rig, "W2", run=0)]
    for (ask, heard), step in zip(turns, find(["W2"])[0].steps, strict=True):
        check_answer(ask, heard)
        check_length(ask, heard, step, rig.text)
    for (_, before), (_, heard) in pairwise(turns):
        assert heard.known is not None
        assert heard.known - PAGE < heard.reused <= heard.known
        assert heard.known >= before.prompt - 1


@pytest.mark.long
def test_a_run_begins_anew(rig: Rig) -> None:
    for run in (1, 2):
        turns = [turn for (turn,) in carry_out(rig, "W4", run)]
        assert len(turns) == 13
        assert turns[0][1].reused < 0.1 * turns[0][1].prompt
        assert all(heard.reused >= before.prompt - PAGE for (_, before), (_, heard) in pairwise(turns))


@pytest.mark.long
def test_three_agents_share_their_tools_beside_one_that_grows(rig: Rig) -> None:
    done = carry_out(rig, "W3", run=0)
    for ask, heard in (turn for turns in done for turn in turns):
        check_answer(ask, heard)
    assert [len(turns) for turns in done] == [1] * 4 + [3] * 2 + [1] * 4
    main = [turns[0] for turns in done if len(turns) == 1]
    check_length(*main[-1], find(["W3"])[0].steps[-1], rig.text)
    assert all(heard.reused >= before.prompt - PAGE for (_, before), (_, heard) in pairwise(main))
    tools = len(rig.text.render([{"role": "user", "content": ""}], tools=main[0][0].tools).ids)
    assert all(heard.reused > 0.9 * tools for _, heard in done[4])
    (told,) = (message for message in done[6][0][0].messages if "Agent C:" in message["content"])
    assert told["role"] == "tool"


def test_prompts_are_the_same_whenever_they_are_asked(rig: Rig) -> None:
    prompts = [next(converse(find(["W4"])[0], Setting(CONTEXT, rig.text, run)))[0].messages for run in (5, 5, 6)]
    assert prompts[0] == prompts[1] != prompts[2]
