"""Streams beside a long prompt, and beside requests that are refused: they hardly wait, and say what they say alone."""

from __future__ import annotations

import asyncio
import json
import string
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.server.load_rig import FRONT, Crowd, letters, long_store, until
from tests.server.running_front import RunningFront, start_front
from tests.turns.served import make_store, write_bytes_tokenizer
from tests.unit.fake_executor import VOCAB

KINDS = ("attention", "delta-net", "window")
WAIT = 0.3  # seconds that a long prompt may add to the time between two tokens of a stream
STREAMS = 4
LONG_PROMPT = 20_000
ATTEMPTS = 6  # a machine with other work to do takes the processor away for longer than that
CONTEXT = 2048
VOCABULARY = 100_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_store(tmp_path_factory.mktemp("streams"), KINDS)


@pytest.fixture(scope="module")
def front(served: Path) -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(served, Path(folder), script=FRONT)
        yield running
        assert running.stop() == 0


async def longest_waits(crowd: Crowd, seed: int) -> tuple[float, float, float]:
    """Seconds: the longest wait of any of four streams for its next token before a long prompt came, and while it was
    read; and how long that took."""
    streams = [crowd.ask(letters(number, 50), 8000) for number in range(STREAMS)]
    await until(lambda: all(len(listener.texts) > 100 for listener, _ in streams))
    before = [len(listener.texts) for listener, _ in streams]
    loop = asyncio.get_running_loop()
    began = loop.time()
    reader, reading = crowd.ask(letters(seed, LONG_PROMPT), 1)
    await reading
    took = loop.time() - began
    assert reader.usage is not None
    assert reader.usage["prompt_tokens"] == LONG_PROMPT
    assert reader.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert not any(listener.over for listener, _ in streams)
    arrivals = [listener.arrivals for listener, _ in streams]
    own = max(wait for times, count in zip(arrivals, before, strict=True) for wait in waits(times[20:count]))
    beside = max(wait for times, count in zip(arrivals, before, strict=True) for wait in waits(times[count - 1 :]))
    for listener, _ in streams:
        listener.leave()
    await asyncio.gather(*(task for _, task in streams))
    return own, beside, took


def waits(arrivals: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(arrivals)]


@pytest.mark.long
@pytest.mark.clock
@pytest.mark.parametrize("kind", KINDS)
def test_four_streams_hardly_wait_for_a_long_prompt(front: RunningFront, kind: str) -> None:
    front.control("load", model=kind, kv_tokens=32768)
    crowd, seen = Crowd(front, kind), []
    for attempt in range(ATTEMPTS):
        own, beside, took = asyncio.run(longest_waits(crowd, 10 + attempt))
        seen.append(f"{own * 1e3:.0f} ms alone, {beside * 1e3:.0f} ms beside {LONG_PROMPT} tokens read in {took:.1f} s")
        assert took > WAIT, "read at once, this prompt would hold nobody up"
        if beside <= own + WAIT:
            break
    print(kind, *seen, sep="\n")
    assert beside <= own + WAIT, seen


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_refused_changes_no_character_of_others(front: RunningFront, kind: str) -> None:
    front.control("load", model=kind, context=CONTEXT, kv_tokens=4096)
    crowd = Crowd(front, kind)
    prompts = [letters(20 + number, 40 + 90 * number) for number in range(STREAMS)]

    async def together() -> tuple[list[str], list[str]]:
        alone = [await crowd.alone(prompt, 400) for prompt in prompts]
        streams = [crowd.ask(prompt, 400) for prompt in prompts]
        await until(lambda: all(listener.texts for listener, _ in streams))
        for length in (CONTEXT, CONTEXT + 1, 3 * CONTEXT):
            await asyncio.to_thread(refused, crowd, length)
        listeners = await asyncio.gather(*(task for _, task in streams))
        return alone, [listener.text for listener in listeners]

    alone, beside = asyncio.run(together())
    assert [len(text) for text in alone] == [400] * STREAMS
    assert beside == alone


def refused(crowd: Crowd, length: int) -> None:
    """Ask for the impossible in four ways; each is told both counts, before any header of a stream."""
    prompt = letters(length, length)
    chat = [{"role": "user", "content": "x" * length}]
    bodies = {"completions": crowd.body(prompt, 1), "chat/completions": {"model": crowd.model, "messages": chat}}
    for stream in (False, True):
        for route, body in bodies.items():
            answer = httpx.post(f"{crowd.front.url}/v1/{route}", json={**body, "stream": stream}, timeout=60)
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
            assert f"maximum context length is {CONTEXT} tokens" in error["message"]
            count = int(error["message"].split(" tokens")[0].removeprefix("The prompt is too long: its "))
            assert count == length if route == "completions" else count > length
            assert error["remedy"]


def test_who_still_fits_is_answered_to_the_last_token(front: RunningFront) -> None:
    front.control("load", model="delta-net", context=CONTEXT, kv_tokens=4096)
    crowd = Crowd(front, "delta-net")
    body = crowd.body(letters(1, CONTEXT - 1), 50)
    answer = httpx.post(f"{front.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFront]:
    """A front over a model with a real vocabulary's number of tokens."""
    store = make_store(tmp_path_factory.mktemp("wordy"), ["attention"], VOCABULARY, write_words)
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), script=FRONT)
        yield running
        assert running.stop() == 0


def write_words(folder: Path) -> None:
    """The tokens of `write_bytes_tokenizer`, and made-up words that fill the vocabulary."""
    write_bytes_tokenizer(folder)
    path, random = folder / "tokenizer.json", Random(1)
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    count, ids = len(words), iter(range(VOCAB, VOCABULARY))
    while len(words) < count + VOCABULARY - VOCAB:
        word = "".join(random.choices(string.ascii_lowercase, k=random.randint(3, 9)))
        if word not in words:
            words[word] = next(ids)
    path.write_text(json.dumps(content))


async def beside_a_grammar(crowd: Crowd) -> tuple[float, float, float]:
    """Seconds: the longest wait of a stream for its next token before the first grammar came, and while the vocabulary
    was read for it; and how long that took."""
    await asyncio.to_thread(crowd.front.control, "stop", model=crowd.model)
    listener, streaming = crowd.ask(letters(1, 50), 8000)
    await until(lambda: len(listener.texts) > 100)
    count = len(listener.texts)
    began = time.monotonic()
    body = {**crowd.body(letters(2, 50), 0), "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    del body["prompt"]
    form = {"response_format": {"type": "json_object"}}
    answer = await asyncio.to_thread(
        httpx.post, f"{crowd.front.url}/v1/chat/completions", json={**body, **form}, timeout=60
    )
    took = time.monotonic() - began
    assert answer.json()["choices"][0]["message"]["content"] in ("", " ", "{")
    assert not listener.over
    own, beside = max(waits(listener.arrivals[20:count])), max(waits(listener.arrivals[count - 1 :]))
    listener.leave()
    await streaming
    return own, beside, took


def test_a_stream_hardly_waits_while_a_vocabulary_is_read(wordy: RunningFront) -> None:
    crowd, seen = Crowd(wordy, "attention"), []
    for _ in range(ATTEMPTS):
        own, beside, took = asyncio.run(beside_a_grammar(crowd))
        seen.append(f"{own * 1e3:.0f} ms alone, {beside * 1e3:.0f} ms beside a grammar that came after {took:.1f} s")
        assert took > WAIT, "read at once, this vocabulary would hold nobody up"
        if beside <= own + WAIT / 2:
            break
    print(*seen, sep="\n")
    assert beside <= own + WAIT / 2, seen
