"""The control interface: load, attach, resize, stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.running_front import RunningFront, begin_stream, eventually

OwnFront = Callable[..., RunningFront]


def test_loading_twice_attaches(fresh: RunningFront) -> None:
    first = fresh.control("load", model="fake", kv_tokens=1000, threads=1)
    assert first["load"] >= 0
    assert {key: first[key] for key in ("name", "device", "threads", "kv_tokens", "kv_bytes", "context", "busy")} == {
        "name": "fake",
        "device": "cpu",
        "threads": 1,
        "kv_tokens": 1008,
        "kv_bytes": 100_800,
        "context": 1008,
        "busy": False,
    }
    second = fresh.control("load", model="fake", kv_tokens=1000, defaults={"threads": 2, "context": 64})
    assert second["load"] is None
    assert (second["threads"], second["context"]) == (1, 1008)
    assert len(fresh.workers()) == 1


def test_defaults_serve_a_fresh_load(fresh: RunningFront) -> None:
    state = fresh.control("load", model="fake", threads=1, defaults={"threads": 4, "context": 64, "device": "auto"})
    assert (state["threads"], state["context"], state["kv_tokens"]) == (1, 64, 64)


def test_another_budget_is_a_resize_and_other_flags_restart_an_idle_worker(fresh: RunningFront) -> None:
    fresh.control("load", model="fake", kv_tokens=1024)
    (worker,) = fresh.workers()
    assert fresh.control("load", model="fake", kv_tokens=2048)["kv_tokens"] == 2048
    assert fresh.workers() == [worker]
    state = fresh.control("load", model="fake", threads=1)
    assert (state["threads"], state["load"] is not None) == (1, True)
    assert fresh.workers() != [worker]


def test_a_busy_worker_is_resized_but_not_restarted(fresh: RunningFront) -> None:
    fresh.control("load", model="fake", kv_tokens=4096)
    chunks = begin_stream(fresh)
    error = fresh.control("load", model="fake", threads=1)["error"]
    assert error["type"] == "BusyError"
    assert "--threads 1 (it runs with 2)" in error["message"]
    resized = fresh.control("resize", model="fake", kv_tokens=8192)
    assert (resized["before"]["kv_tokens"], resized["after"]["kv_tokens"]) == (4096, 8192)
    assert resized["after"]["busy"]
    assert next(chunks).choices
    chunks.close()


def test_resize_reports_before_and_after_and_says_what_has_no_effect(fresh: RunningFront) -> None:
    fresh.control("load", model="fake", kv_tokens=1024)
    resized = fresh.control("resize", model="fake", kv_bytes=50_000, experts="2G")
    assert (resized["before"]["context"], resized["after"]["context"]) == (1024, 496)
    assert resized["seconds"] >= 0
    assert "--experts has no effect" in resized["notes"][0]
    attached = fresh.control("load", model="fake", experts="37%")
    assert "--experts has no effect" in attached["notes"][0]


def test_stop_names_what_it_stopped(fresh: RunningFront) -> None:
    fresh.control("load", model="fake")
    assert fresh.control("stop", model="fake") == {"stopped": ["fake"]}
    assert fresh.control("ps") == {"models": [], "loading": []}
    assert eventually(lambda: not fresh.workers())
    assert fresh.control("stop", model="fake")["error"]["type"] == "NotFoundError"


def test_flags_that_fit_no_machine_cost_nobody_his_model(fresh: RunningFront) -> None:
    fresh.control("load", model="other")
    error = fresh.control("load", model="fake", context=5000)["error"]
    assert error["type"] == "DoesNotFitError"
    assert "than the 4096 this model knows" in error["message"]
    assert [model["name"] for model in fresh.control("ps")["models"]] == ["other"]


def test_a_model_that_needs_the_room_of_an_idle_one_gets_it(fresh: RunningFront) -> None:
    fresh.control("load", model="other")
    error = fresh.control("load", model="fake", kv_tokens=1 << 20)["error"]
    assert error["type"] == "NoRoomError"
    assert "too many" in error["message"]
    assert fresh.control("ps")["models"] == [], "idle models are unloaded before a load is given up"


@pytest.mark.parametrize(
    ("action", "body", "kind", "words"),
    [
        ("load", {"model": "fakke"}, "NotFoundError", "Did you mean fake?"),
        ("load", {"model": "fake", "device": "cuda"}, "UnsupportedError", ""),
        ("load", {"model": "fake", "device": "tpu"}, "UsageError", ""),
        ("load", {"model": "fake", "threads": 0}, "UsageError", ""),
        ("load", {"model": "fake", "experts": "lots"}, "UsageError", ""),
        ("load", {"model": "fake", "kv_tokens": 1, "kv_bytes": 1}, "UsageError", ""),
        ("load", {"model": "fake", "kv": "32k"}, "UsageError", ""),
        ("load", {"model": "fake", "keep_alive": -1}, "UsageError", ""),
        ("load", {"model": "broken"}, "CorruptFileError", "Convert the model again."),
        ("load", {}, "UsageError", ""),
        ("resize", {"model": "fake"}, "UsageError", "Give --kv or --experts."),
        ("resize", {"model": "fake", "kv_tokens": 64}, "NotFoundError", "`freetoken ps` lists what is."),
        ("stats", {"model": "other"}, "NotFoundError", "`freetoken ps` lists what is."),
    ],
)
def test_errors_name_our_types(fresh: RunningFront, action: str, body: dict[str, Any], kind: str, words: str) -> None:
    error = fresh.control(action, **body)["error"]
    assert error["type"] == kind
    assert error["message"]
    if words:
        assert error["remedy"] == words


def test_a_load_that_the_system_ends_is_told_in_words(fresh: RunningFront) -> None:
    starved, emptied = (fresh.control("load", model=name)["error"] for name in ("starved", "emptied"))
    assert starved["type"] == "NoRoomError"
    assert starved["message"].endswith("starved cannot be loaded: memory ran out.")
    assert emptied["type"] == "FreetokenError"
    assert emptied["message"].endswith("/gone).")
    assert "emptied cannot be loaded: No such file or directory (" in emptied["message"]
