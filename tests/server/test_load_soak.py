"""Hundreds of mixed requests over a context memory that is too small for them, while it changes its size and clients
leave at random: nothing is lost or leaks, and who stays hears, to the bit, what a cold model says."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.server.load_rig import FRONT, HELD, PAGE, Crowd, letters, long_store, until
from tests.server.running_front import RunningFront, start_front

KINDS = ("delta-net", "window")
CONTEXT = 1024
ROOMS = (1024, 1536, 2048, 3072, 6144)  # tokens
PROMPTS = 30
TOKENS = 48  # of the longest answer
ROUNDS = 4
REQUESTS = 80  # a round
AT_ONCE = 12
CROWDED = 70  # tokens of a prompt where as many come at once
LEAK = 4 << 20  # bytes that a process may gain after the first round

Prompt = tuple[int, ...]
Said = tuple[str, list[float]]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFront]:
    store = long_store(tmp_path_factory.mktemp("soak"), KINDS, CONTEXT)
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), script=FRONT)
        yield running
        assert running.stop() == 0


def make_prompts(chance: Random) -> list[Prompt]:
    """Prompts that begin with parts of each other, in mid-page and at borders."""
    prompts = [tuple(letters(number, chance.randrange(20, 700))) for number in range(PROMPTS // 5)]
    while len(prompts) < PROMPTS:
        before = chance.choice(prompts)
        kept = before[: chance.choice((len(before), chance.randrange(1, len(before) + 1)))]
        prompts.append((*kept, *letters(100 + len(prompts), chance.randrange(1, 250)))[: CONTEXT - TOKENS - 1])
    return prompts


async def cold_answers(crowd: Crowd, prompts: Sequence[Prompt]) -> dict[Prompt, Said]:
    """What a worker says to each that was started for it."""
    answers: dict[Prompt, Said] = {}
    for prompt in prompts:
        crowd.front.control("stop", model=crowd.model)
        listener, task = crowd.ask(prompt, TOKENS, logprobs=0)
        await task
        assert listener.usage is not None
        assert listener.usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert len(listener.texts) == len(listener.scores) == TOKENS
        answers[prompt] = listener.text, listener.scores
    return answers


async def visit(crowd: Crowd, answers: Mapping[Prompt, Said], chance: Random, seen: Counter[str]) -> None:
    """One client: it hears its answer to the end, or leaves at some time, or after some tokens."""
    prompt, tokens = chance.choice(list(answers)), chance.randrange(1, TOKENS + 1)
    text, scores = answers[prompt]
    listener, task = crowd.ask(prompt, tokens, logprobs=0)
    mood = chance.choice(("stays", "stays", "stays", "is impatient", "has heard enough"))
    if mood == "is impatient":
        await asyncio.sleep(chance.random() * 0.3)
        await until(lambda: listener.connected)
    elif mood == "has heard enough":
        enough = chance.randrange(1, tokens + 1)
        await until(lambda: len(listener.texts) >= enough or task.done())
    if mood != "stays":
        listener.leave()
    await task
    assert listener.error is None, listener.error
    assert listener.text == text[: len(listener.texts)]
    assert listener.scores == scores[: len(listener.scores)]
    if mood == "stays":
        assert (len(listener.texts), len(listener.scores)) == (tokens, tokens)
        assert listener.usage is not None
        seen["reused"] += listener.usage["prompt_tokens_details"]["cached_tokens"]
    seen[mood] += 1


async def change_rooms(crowd: Crowd, chance: Random, seen: Counter[str]) -> None:
    """Resize for ever. A room that is too small for who is there is refused, and says so."""
    while True:
        await asyncio.sleep(chance.random() * 0.1)
        resized = await asyncio.to_thread(
            crowd.front.control, "resize", model=crowd.model, kv_tokens=chance.choice(ROOMS)
        )
        if "error" in resized:
            assert resized["error"]["type"] == "DoesNotFitError", resized
        seen["refused" if "error" in resized else "resized"] += 1


async def soak(crowd: Crowd, answers: Mapping[Prompt, Said], chance: Random, seen: Counter[str]) -> None:
    """A round: as many clients as come, some at once."""
    free = asyncio.Semaphore(AT_ONCE)

    async def come() -> None:
        async with free:
            await visit(crowd, answers, chance, seen)

    resizing = asyncio.create_task(change_rooms(crowd, chance, seen))
    await asyncio.gather(*(come() for _ in range(REQUESTS)))
    resizing.cancel()
    await asyncio.wait([resizing])
    assert resizing.cancelled(), resizing.exception()


def memory(front: RunningFront) -> list[int]:
    """Bytes of the front's and its workers' own memory."""
    found = []
    for pid in (front.process.pid, *front.workers()):
        (line,) = (text for text in Path(f"/proc/{pid}/status").read_text().splitlines() if text.startswith("RssAnon"))
        found.append(int(line.split()[1]) * 1024)
    return found


async def settle(crowd: Crowd) -> tuple[int, list[int]]:
    """Descriptors and bytes when everybody has left and all but a page is forgotten; no block is held or lost then."""
    async with asyncio.timeout(10):
        while dict.fromkeys(HELD, 0).items() - (await crowd.stats()).items():
            await asyncio.sleep(0.01)
    await asyncio.to_thread(crowd.front.control, "resize", model=crowd.model, kv_tokens=PAGE)
    stats = await crowd.stats()
    assert not dict.fromkeys(HELD, 0).items() - stats.items()
    assert stats["kv_tokens_cached"] <= PAGE
    assert stats["checkpoints"] <= 1
    await asyncio.to_thread(crowd.front.control, "resize", model=crowd.model, kv_tokens=ROOMS[-1])
    return crowd.descriptors(), memory(crowd.front)


async def crowd_out(crowd: Crowd) -> None:
    """More at once than the smallest room holds to the end of their answers: some have to stop for others."""
    await asyncio.to_thread(crowd.front.control, "resize", model=crowd.model, kv_tokens=ROOMS[0])
    prompts = [letters(1000 + number, CROWDED) for number in range(AT_ONCE)]
    assert AT_ONCE * CROWDED < ROOMS[0] < AT_ONCE * (CROWDED + TOKENS)
    heard = await asyncio.gather(*(crowd.ask(prompt, TOKENS)[1] for prompt in prompts))
    assert (await crowd.stats())["preemptions"] > 0
    assert [listener.text for listener in heard] == [await crowd.alone(prompt, TOKENS) for prompt in prompts]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks_and_every_answer_is_that_of_a_cold_model(front: RunningFront, kind: str) -> None:
    front.control("load", model=kind, context=CONTEXT, kv_tokens=ROOMS[-1])
    crowd, chance, seen = Crowd(front, kind), Random(kind), Counter[str]()

    async def whole() -> list[tuple[int, list[int]]]:
        answers = await cold_answers(crowd, make_prompts(chance))
        rounds = []
        for _ in range(ROUNDS):
            await soak(crowd, answers, chance, seen)
            rounds.append(await settle(crowd))
        await crowd_out(crowd)
        # A connection takes its time to close, and that of the last question may be among those that are counted.
        await until(lambda: crowd.descriptors() <= rounds[0][0], 10)
        return rounds

    rounds = asyncio.run(whole())
    stats = front.stats(kind)
    print(dict(seen), {name: stats[name] for name in ("requests", "steps", "preemptions")}, rounds)
    assert all(last <= before + LEAK for before, last in zip(rounds[0][1], rounds[-1][1], strict=True)), rounds
    assert min(seen[what] for what in ("reused", "is impatient", "has heard enough", "resized", "refused")) > 0, seen
    for other in KINDS:
        front.control("stop", model=other)
