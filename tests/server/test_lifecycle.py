"""Processes, sockets and ports: what is started is ended, and what dies is replaced."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.running_front import HERE, RunningFront, alive, begin_stream, eventually, start_front

GOOD: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
OwnFront = Callable[..., RunningFront]


def ask(front: RunningFront, model: str = "fake") -> httpx.Response:
    body = {**GOOD, "model": model, "max_tokens": 2}
    return httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=30)


def test_the_worker_that_is_killed_mid_stream_is_a_sentence_and_the_next_request_gets_a_new_one(
    own_front: OwnFront,
) -> None:
    front = own_front()
    chunks = begin_stream(front)
    (worker,) = front.workers()
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(openai.APIError, match=r"worker was killed .* Send the request again"):
        list(chunks)
    assert ask(front).status_code == 200
    assert front.workers() != [worker]
    assert not alive(worker)


def test_a_model_that_keeps_crashing_is_held_back_for_a_while(own_front: OwnFront) -> None:
    front = own_front()
    for _ in range(3):
        assert ask(front).status_code == 200
        os.kill(front.workers()[0], signal.SIGKILL)
        assert eventually(lambda: not front.workers())
    refused = ask(front)
    assert refused.status_code == 503
    assert "crashed 3 times" in refused.json()["error"]["message"]
    assert ask(front, "other").status_code == 200


def test_a_model_that_crashes_while_it_loads_is_held_back_too(own_front: OwnFront) -> None:
    front = own_front()
    for _ in range(3):
        assert "ended with code 7" in ask(front, "dying").json()["error"]["message"]
    refused = ask(front, "dying")
    assert refused.status_code == 503
    assert "crashed 3 times" in refused.json()["error"]["message"]


def test_a_worker_of_another_release_is_a_sentence_each_time(own_front: OwnFront) -> None:
    front = own_front()
    for _ in range(4):
        error = ask(front, "stranger").json()["error"]
        assert "of another release" in error["message"]
        assert "freetoken stop --all" in error["remedy"]
    assert not front.workers()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_pages(own_front: OwnFront, streamed: bool) -> None:
    front = own_front()
    if streamed:
        begin_stream(front).close()
    else:
        front.control("load", model="fake")
        data = json.dumps({**GOOD, "max_tokens": 3000, "ignore_eos": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", front.port)) as client:
            client.sendall(head.encode() + data)
            assert eventually(lambda: front.stats()["steps"] > 20)
            assert front.stats()["active"] == 1
    assert eventually(lambda: front.stats()["active"] == 0)
    stats = front.stats()
    assert stats["kv_tokens_held"] == 0
    assert stats["kv_tokens_cached"] > 0
    steps = stats["steps"]
    time.sleep(0.1)
    assert front.stats()["steps"] == steps


def test_a_client_that_leaves_during_the_prompt_is_noticed(own_front: OwnFront) -> None:
    front = own_front()
    body = {"model": "fake", "prompt": [65] * 3000, "stream": True}
    with httpx.stream("POST", f"{front.url}/v1/completions", json=body, timeout=30) as response:
        line = next(response.iter_lines())
        assert line.startswith(": reading 0 of 3000")
    assert eventually(lambda: front.stats()["active"] == 0, 3)
    assert front.stats()["prompt_tokens"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_front_leaves_no_child_port_or_socket(own_front: OwnFront, number: signal.Signals) -> None:
    front = own_front()
    failures: list[openai.APIError] = []
    chunks = begin_stream(front)

    def read_on() -> None:
        try:
            list(chunks)
        except openai.APIError as error:
            failures.append(error)

    reader = threading.Thread(target=read_on)
    reader.start()
    workers = front.workers()
    began = time.monotonic()
    front.process.send_signal(number)
    assert front.process.wait(10) == 0
    assert time.monotonic() - began < 6
    reader.join(5)
    assert "unloaded" in str(failures[0])
    assert workers
    assert not any(map(alive, workers))
    assert not Path(front.config["socket"]).exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may linger, a listener not
        probe.bind(("127.0.0.1", front.port))


def test_a_front_that_is_stopped_while_a_model_loads_leaves_no_worker(own_front: OwnFront) -> None:
    front = own_front()
    answers: list[httpx.Response] = []
    asker = threading.Thread(target=lambda: answers.append(ask(front, "slow")))
    asker.start()
    assert eventually(lambda: len(front.workers()) == 1)
    (worker,) = front.workers()
    began = time.monotonic()
    assert front.stop() == 0
    assert time.monotonic() - began < 6
    asker.join(5)
    assert not alive(worker)
    assert [response.status_code for response in answers] == [503]


def test_a_client_that_gives_up_on_a_load_ends_it(own_front: OwnFront) -> None:
    front = own_front()
    seen: list[bool] = []
    watcher = threading.Thread(
        target=lambda: seen.append(eventually(lambda: front.control("ps")["loading"] == ["slow"], 5))
    )
    watcher.start()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{front.url}/v1/chat/completions", json={**GOOD, "model": "slow"}, timeout=0.7)
    watcher.join(10)
    assert seen == [True]
    assert eventually(lambda: not front.workers(), 3)
    assert front.control("ps") == {"models": [], "loading": []}


def test_a_stopped_front_lets_short_answers_finish(own_front: OwnFront) -> None:
    front = own_front()
    assert ask(front).status_code == 200
    results: list[httpx.Response] = []
    body = {**GOOD, "max_tokens": 300, "ignore_eos": True}
    asker = threading.Thread(
        target=lambda: results.append(httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=30))
    )
    asker.start()
    assert eventually(lambda: front.stats()["active"] == 1)
    assert front.stop() == 0
    asker.join(5)
    assert results[0].json()["usage"]["completion_tokens"] == 300


def test_the_worker_of_a_front_that_is_killed_ends_too(own_front: OwnFront) -> None:
    front = own_front()
    begin_stream(front)
    (worker,) = front.workers()
    front.process.kill()
    front.process.wait(5)
    assert eventually(lambda: not alive(worker), 3)


def test_a_dead_fronts_socket_is_replaced(store: Path, runtime: Path) -> None:
    first = start_front(store, runtime)
    first.process.kill()
    first.process.wait(5)
    assert Path(first.config["socket"]).exists()
    second = start_front(store, runtime)
    assert second.stop() == 0


def test_a_second_front_on_the_same_lock_leaves_quietly(own_front: OwnFront) -> None:
    front = own_front()
    second = subprocess.run(
        [sys.executable, str(HERE / "run_front.py"), front.process.args[-1]],  # type: ignore[index]
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert second.returncode == 0
    assert "Another server of this store" in second.stderr
    assert ask(front).status_code == 200


def test_a_taken_port_is_a_sentence_and_leaves_nothing(store: Path, runtime: Path, free_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        with pytest.raises(AssertionError, match="the front ended with 1"):
            start_front(store, runtime, port=free_port)
    assert not (runtime / "front.sock").exists()


def test_a_public_address_needs_a_key(store: Path, runtime: Path) -> None:
    with pytest.raises(AssertionError, match="the front ended with 2"):
        start_front(store, runtime, host="0.0.0.0")


def test_the_socket_is_this_users_alone(front: RunningFront) -> None:
    path = Path(front.config["socket"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_idle_model_is_unloaded_and_comes_back_with_its_settings(own_front: OwnFront) -> None:
    front = own_front(keep_alive=0.3)
    state = front.control("load", model="fake", context=512, keep_alive=0.6)
    assert state["load"] is not None
    assert 0 < state["until"] - time.time() <= 0.6
    assert eventually(lambda: front.control("ps")["models"] == [], 5)
    assert eventually(lambda: not front.workers(), 5)
    assert ask(front).status_code == 200
    (model,) = front.control("ps")["models"]
    assert model["context"] == 512


def test_a_model_that_was_replaced_is_loaded_anew_once_nobody_uses_it(own_front: OwnFront, store: Path) -> None:
    front = own_front()
    chunks = begin_stream(front)
    first = front.workers()
    manifest = store / "fake" / "ftw.json"
    (store / "fake" / "new.json").write_text("{}")
    (store / "fake" / "new.json").replace(manifest)
    assert ask(front).status_code == 200
    assert front.workers() == first, "a stream is not cut for it"
    chunks.close()
    eventually(lambda: not front.control("ps")["models"][0]["busy"])
    assert ask(front).status_code == 200
    second = front.workers()
    assert second != first
    assert ask(front).status_code == 200
    assert front.workers() == second


def test_a_busy_model_outlives_its_keep_alive(own_front: OwnFront) -> None:
    front = own_front(keep_alive=0)
    chunks = begin_stream(front)
    time.sleep(0.3)
    (model,) = front.control("ps")["models"]
    assert model["busy"]
    chunks.close()
    assert eventually(lambda: front.control("ps")["models"] == [], 5)


def test_a_model_that_is_being_resized_is_not_idle(own_front: OwnFront) -> None:
    front = own_front()
    front.control("load", model="sluggish", kv_tokens=1024, keep_alive=0.5)
    assert front.control("load", model="sluggish", kv_tokens=2048)["kv_tokens"] == 2048
    assert front.control("resize", model="sluggish", kv_tokens=4096)["after"]["kv_tokens"] == 4096
    assert len(front.workers()) == 1
    assert eventually(lambda: front.control("ps")["models"] == [], 5)


def test_a_new_worker_waits_until_one_that_leaves_is_gone(own_front: OwnFront) -> None:
    front = own_front()
    front.control("load", model="clinging")
    (old,) = front.workers()
    stopper = threading.Thread(target=lambda: front.control("stop", model="clinging"))
    stopper.start()
    assert eventually(lambda: front.control("ps")["models"] == [])
    assert "error" not in front.control("load", model="fake")
    assert not alive(old)
    stopper.join(5)


def test_a_background_front_leaves_when_it_has_nothing_to_do(own_front: OwnFront) -> None:
    front = own_front(keep_alive=0, idle_exit=0.5)
    assert ask(front).status_code == 200
    assert front.process.wait(10) == 0
    assert not Path(front.config["socket"]).exists()


def test_shutdown_by_request(own_front: OwnFront) -> None:
    front = own_front()
    chunks = begin_stream(front)
    assert front.control("shutdown", if_idle=True) == {"busy": ["fake"]}
    chunks.close()
    assert eventually(lambda: front.stats()["active"] == 0)
    assert front.control("shutdown", if_idle=True) == {}
    assert front.process.wait(10) == 0
