"""Twenty clients that hang up at once, in every phase of a request: within a step everything of theirs is free, and a
neighbour's text is what it is alone."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.memory.pages import PAGE_TOKENS, pages_for
from tests.server.load_rig import HELD, Crowd, Listener, letters, long_store, until
from tests.server.running_front import HERE, RunningFront, start_front

KINDS = ("attention", "delta-net", "window")
CLIENTS = 20
NEIGHBOUR = letters(99, 60)
NEIGHBOUR_TOKENS = 120  # that are compared
CONTEXT = 4096
STEPS = 2  # the one under way when they hang up, and one that begins before the front hears of it


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFront]:
    store = long_store(tmp_path_factory.mktemp("disconnects"), KINDS)
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), script=HERE / "run_paced_front.py")
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module", params=[pytest.param("attention", marks=pytest.mark.long), "delta-net", "window"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def crowd(front: RunningFront, kind: str) -> Crowd:
    """A crowd before a model with room for all of it."""
    front.control("load", model=kind, context=CONTEXT, kv_tokens=16 * CONTEXT)
    return Crowd(front, kind)


@pytest.fixture(scope="module")
def alone(front: RunningFront, kind: str) -> str:
    """What the neighbour hears when nobody is there."""
    front.control("load", model=kind, context=CONTEXT, kv_tokens=16 * CONTEXT)
    return asyncio.run(Crowd(front, kind).alone(NEIGHBOUR, NEIGHBOUR_TOKENS))


@dataclass
class Scene:
    """Clients of a phase."""

    crowd: Crowd
    clients: list[Listener]
    tasks: list[asyncio.Task[Listener]]

    def enter(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        for prompt in prompts:
            listener, task = self.crowd.ask(prompt, tokens)
            self.clients.append(listener)
            self.tasks.append(task)

    async def leave(self) -> None:
        for client in self.clients:
            client.leave()
        await asyncio.gather(*self.tasks)


async def queued(scene: Scene) -> None:
    """One of them fills context memory, the others wait for it."""
    scene.enter([letters(0, CONTEXT - 600)], 500)
    await until(lambda: bool(scene.clients[0].texts))
    scene.enter([letters(number, CONTEXT - 600) for number in range(1, CLIENTS)], 500)
    await met(scene.crowd, waiting=CLIENTS - 1)


async def reading(scene: Scene) -> None:
    scene.enter([letters(100 + number, CONTEXT - 200) for number in range(CLIENTS)], 100)
    await until(lambda: sum(client.read > 100 for client in scene.clients) > 3)
    assert not any(client.texts for client in scene.clients)


async def first_token(scene: Scene) -> None:
    scene.enter([letters(number, 40) for number in range(CLIENTS)], 100)
    await until(lambda: all(client.read >= 40 or client.texts for client in scene.clients))


async def decoding(scene: Scene) -> None:
    scene.enter([letters(number, 40) for number in range(CLIENTS)], 100)
    await until(lambda: all(len(client.texts) > number % 7 for number, client in enumerate(scene.clients)))


PHASES: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "queued": queued,
    "reading": reading,
    "first token": first_token,
    "decoding": decoding,
}


async def met(crowd: Crowd, **values: float) -> None:
    """Wait until counters have these values."""
    async with asyncio.timeout(60):
        while values.items() - (await crowd.stats()).items():
            await asyncio.sleep(0.01)


async def quiet(crowd: Crowd) -> None:
    """Wait until nothing goes on; nothing is held then."""
    await met(crowd, **dict.fromkeys(HELD, 0))


async def left(crowd: Crowd, steps: float) -> dict[str, float]:
    """The counters as soon as the neighbour is alone, which it must be `STEPS` steps after `steps`."""
    while True:
        stats = await crowd.stats()
        if stats["active"] + stats["waiting"] == 1:
            return stats
        assert stats["steps"] <= steps + STEPS


async def check_leaving(crowd: Crowd, alone: str, phase: Callable[[Scene], Awaitable[None]]) -> None:
    """Have a crowd leave in a phase, and look at what remains within `STEPS` steps and afterwards."""
    await quiet(crowd)
    descriptors = crowd.descriptors()
    neighbour, staying = crowd.ask(NEIGHBOUR, CONTEXT - len(NEIGHBOUR))
    await until(lambda: len(neighbour.texts) > 2)
    before = await crowd.stats()
    scene = Scene(crowd, [], [])
    await phase(scene)
    during = await crowd.stats()
    assert during["active"] + during["waiting"] == 1 + CLIENTS
    await scene.leave()
    after = await left(crowd, during["steps"])
    heard = len(neighbour.texts)
    assert after["kv_tokens_held"] <= pages_for(len(NEIGHBOUR) + heard + STEPS) * PAGE_TOKENS
    assert after["windows_held"] <= before["windows_held"] + 1
    assert after["states_held"] <= 2, "its own, and that at its last page border"
    await until(lambda: len(neighbour.texts) > heard + 5)
    neighbour.leave()
    await staying
    assert neighbour.text[: len(alone)] == alone[: len(neighbour.text)]
    await quiet(crowd)
    await until(lambda: crowd.descriptors() <= descriptors, 5)


@pytest.mark.parametrize("phase", PHASES)
def test_twenty_who_leave_at_once_hold_nothing_a_step_later(crowd: Crowd, alone: str, phase: str) -> None:
    if phase == "queued":
        crowd.front.control("resize", model=crowd.model, kv_tokens=CONTEXT)
    asyncio.run(check_leaving(crowd, alone, PHASES[phase]))


SAID = "The river is long, and whoever follows it for a day has hardly seen any of it. " * 24
TALK = [{"role": "user", "content": SAID}]


async def control(front: RunningFront, action: str, body: Mapping[str, Any]) -> asyncio.StreamWriter:
    """Send a control request and do not wait for what it says."""
    _, writer = await asyncio.open_unix_connection(front.config["socket"])
    data = json.dumps(body).encode()
    writer.write(f"POST /control/{action} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return writer


async def remembered(crowd: Crowd) -> None:
    """Have the model read `TALK`."""
    body = {"model": crowd.model, "messages": TALK, "max_tokens": 4, "temperature": 0}
    await asyncio.to_thread(lambda: crowd.front.openai.post("/chat/completions", cast_to=object, body=body))


async def check_jobs_left(crowd: Crowd, alone: str, action: str, bodies: Sequence[Mapping[str, Any]]) -> None:
    """Have as many clients begin to save or restore and leave; everything is as it was `STEPS` steps later."""
    await quiet(crowd)
    descriptors, before = crowd.descriptors(), await crowd.stats()
    neighbour, staying = crowd.ask(NEIGHBOUR, CONTEXT - len(NEIGHBOUR))
    await until(lambda: len(neighbour.texts) > 2)
    calm = (await crowd.stats())["kv_tokens_held"] + PAGE_TOKENS
    writers = [await control(crowd.front, action, body) for body in bodies]
    async with asyncio.timeout(20):  # until the first has begun
        while (during := await crowd.stats())["kv_tokens_held"] <= calm:
            await asyncio.sleep(0.01)
    for writer in writers:
        writer.transport.abort()
    while (after := await crowd.stats())["kv_tokens_held"] > len(neighbour.texts) + len(NEIGHBOUR) + 3 * PAGE_TOKENS:
        assert after["steps"] <= during["steps"] + STEPS
    assert after["states_held"] <= 2
    neighbour.leave()
    await staying
    assert neighbour.text[: len(alone)] == alone[: len(neighbour.text)]
    await quiet(crowd)
    await until(lambda: crowd.descriptors() <= descriptors, 5)
    gained = (await crowd.stats())["kv_tokens_cached"] - before["kv_tokens_cached"]
    assert gained <= len(NEIGHBOUR) + len(neighbour.texts) + PAGE_TOKENS, "nothing that was half restored stays"


def test_twenty_saves_whose_clients_leave_keep_nothing(crowd: Crowd, alone: str, tmp_path: Path) -> None:
    asyncio.run(remembered(crowd))
    paths = [str(tmp_path / f"talk{number}") for number in range(CLIENTS)]
    bodies = [{"model": crowd.model, "messages": TALK, "path": path} for path in paths]
    asyncio.run(check_jobs_left(crowd, alone, "save", bodies))
    assert os.listdir(tmp_path) == []


def test_twenty_restores_whose_clients_leave_keep_nothing(crowd: Crowd, alone: str, tmp_path: Path) -> None:
    asyncio.run(remembered(crowd))
    path = str(tmp_path / "talk")
    assert crowd.front.control("save", model=crowd.model, messages=TALK, path=path)["tokens"] > len(SAID) - 48
    crowd.front.control("resize", model=crowd.model, kv_tokens=PAGE_TOKENS)  # it forgets everything
    crowd.front.control("resize", model=crowd.model, kv_tokens=16 * CONTEXT)
    asyncio.run(check_jobs_left(crowd, alone, "restore", [{"model": crowd.model, "path": path}] * CLIENTS))
    assert os.listdir(tmp_path) == ["talk"]


async def leave_during_save(crowd: Crowd, alone: str, path: Path) -> Mapping[str, Any]:
    """What a save says during which a crowd leaves."""
    await quiet(crowd)
    descriptors = crowd.descriptors()
    neighbour, staying = crowd.ask(NEIGHBOUR, CONTEXT - len(NEIGHBOUR))
    saving = asyncio.create_task(
        asyncio.to_thread(crowd.front.control, "save", model=crowd.model, messages=TALK, path=str(path))
    )
    await until(lambda: path.with_name(f".{path.name}.partial").exists())
    scene = Scene(crowd, [], [])
    await decoding(scene)
    during = await crowd.stats()
    await scene.leave()
    await left(crowd, during["steps"])
    assert not saving.done(), "there was nothing to leave in the middle of"
    saved = await saving
    neighbour.leave()
    await staying
    assert neighbour.text[: len(alone)] == alone[: len(neighbour.text)]
    await quiet(crowd)
    await until(lambda: crowd.descriptors() <= descriptors, 5)
    return saved


def test_twenty_who_leave_while_a_conversation_is_saved_change_nothing_of_it(
    crowd: Crowd, alone: str, tmp_path: Path
) -> None:
    asyncio.run(remembered(crowd))
    path = tmp_path / "talk"
    undisturbed = crowd.front.control("save", model=crowd.model, messages=TALK, path=str(path))
    content = path.read_bytes()
    path.unlink()
    assert asyncio.run(leave_during_save(crowd, alone, path)) == undisturbed
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["talk"]
