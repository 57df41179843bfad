"""Models on a device behind a front: attaching, resizing, statistics and the counters for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running_front import RunningFront, begin_stream, eventually

OwnFront = Callable[..., RunningFront]
ON_DEVICE = {"model": "fake", "device": "sim"}


def ask(front: RunningFront, max_tokens: int = 12) -> dict[str, object]:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens}
    answer = httpx.post(f"{front.url}/v1/chat/completions", json={**body, "ignore_eos": True, "temperature": 0})
    assert answer.status_code == 200, answer.text
    statistics: dict[str, object] = answer.json()["statistics"]
    return statistics


def metrics(front: RunningFront, **headers: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and labels (in the order of their names), as Prometheus' own parser reads them."""
    answer = httpx.get(f"{front.url}/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_a_state_tells_the_experts_room_and_its_hits(fresh: RunningFront) -> None:
    state = fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    assert (state["device"], state["device_text"]) == ("sim", "simulated device")
    assert (state["experts"], state["expert_slots"], state["expert_bytes"]) == (0.5, 32, 32_000)
    assert state["device_total"] == 500_000
    assert state["hit_rate"] is None
    ask(fresh)
    (state,) = fresh.control("ps")["models"]
    assert state["hit_rate"] == pytest.approx(0.5)
    again = fresh.control("load", **ON_DEVICE, experts="50%")
    assert (again["load"], again["hit_rate"]) == (None, pytest.approx(0.5))


def test_other_room_for_experts_is_a_resize_and_another_device_a_restart(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    (worker,) = fresh.workers()
    assert fresh.control("load", **ON_DEVICE, experts="16")["expert_slots"] == 16
    assert fresh.control("load", **ON_DEVICE, experts="0", kv_tokens=800)["experts"] == 0.0
    assert fresh.control("load", **ON_DEVICE)["expert_slots"] == 0
    assert fresh.workers() == [worker]
    assert fresh.control("load", model="fake", device="cpu")["experts"] is None
    assert fresh.workers() != [worker]


def test_resize_tells_both_sides_of_both(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    resized = fresh.control("resize", model="fake", experts="20", kv_tokens=800)
    sides = [(side["expert_slots"], side["kv_tokens"]) for side in (resized["before"], resized["after"])]
    assert sides == [(32, 1600), (20, 800)]
    assert resized["seconds"] >= 0
    shared = fresh.control("resize", model="fake", kv_share=0.5)
    assert shared["after"]["kv_tokens"] > 800
    refused = fresh.control("resize", model="fake", experts="1")["error"]
    assert refused["type"] == "DoesNotFitError"
    assert refused["remedy"] == "Give --experts 2 or more, or --experts 0 to cache none."


def test_a_resize_on_attaching_says_what_it_has_to_say(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="4")
    state = fresh.control("load", **ON_DEVICE, experts="100000")
    (note,) = state["notes"]
    assert note.startswith("--experts 100000 slots is more than the 64 experts")


def test_after_a_crash_it_comes_back_with_the_room_it_was_moved_to(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    fresh.control("resize", model="fake", experts="20")
    fresh.control("stop", model="fake")
    ask(fresh)
    (state,) = fresh.control("ps")["models"]
    assert (state["device"], state["expert_slots"], state["kv_tokens"]) == ("sim", 20, 1600)


def test_of_two_resizes_at_once_one_wins_and_one_is_refused(own_front: OwnFront) -> None:
    front = own_front()
    front.control("load", model="sluggish", kv_tokens=1024)

    def resize(tokens: int) -> dict[str, object]:
        return front.control("resize", model="sluggish", kv_tokens=tokens)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resize, (2048, 4096))
    (won,) = [answer for answer in (first, second) if "error" not in answer]
    (lost,) = [answer["error"] for answer in (first, second) if "error" in answer]
    assert lost["type"] == "BusyError"  # type: ignore[index]
    assert lost["message"] == "sluggish is being resized for somebody else at this moment."  # type: ignore[index]
    (state,) = front.control("ps")["models"]
    assert state["kv_tokens"] == won["after"]["kv_tokens"]  # type: ignore[index]
    assert "error" not in resize(512)


def test_a_stream_goes_on_through_resizes(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=3200)
    chunks = begin_stream(fresh)
    for slots in ("2", "64", "0", "32"):
        assert fresh.control("resize", model="fake", experts=slots)["after"]["expert_slots"] == int(slots)
        assert next(chunks).choices
    chunks.close()


def test_a_stuck_cpu_worker_is_a_sentence_and_the_next_request_is_served(own_front: OwnFront) -> None:
    front = own_front()
    front.control("load", model="stuck", device="sim")
    (worker,) = front.workers()
    body = {"model": "stuck", "prompt": "hi", "max_tokens": 3}
    failed = httpx.post(f"{front.url}/v1/completions", json=body)
    assert failed.json()["error"]["message"] == "The CPU did not finish its experts. Send the request again."
    assert httpx.post(f"{front.url}/v1/completions", json=body).status_code == 200
    assert front.workers() == [worker]


def test_an_answer_tells_of_its_hits_misses_and_both_branches(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    statistics = ask(fresh, max_tokens=11)
    assert statistics["hit_rate"] == 0.5
    assert statistics["misses_per_layer"] == 2.0
    assert (statistics["misses_filled"], statistics["misses_computed"]) == (40, 40)
    assert statistics["cpu_share"] == 0.25
    assert 0 < statistics["link"] < 25.1  # type: ignore[operator]
    assert 0 < statistics["host"] < 63.2  # type: ignore[operator]
    assert statistics["clock"] == "rtx4090-server"
    assert 0 < statistics["fraction"] <= 1  # type: ignore[operator]
    assert statistics["why"]


def test_prometheus_reads_the_counters(fresh: RunningFront) -> None:
    assert "freetoken_hits" not in metrics(fresh)
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    fresh.control("load", model="other")
    ask(fresh, max_tokens=11)
    found = metrics(fresh)
    assert found["freetoken_generated_tokens_total"] == {("fake",): 11.0, ("other",): 0.0}
    assert found["freetoken_expert_slots"] == {("fake",): 32.0}
    assert found["freetoken_expert_hit_rate"][("fake",)] == pytest.approx(0.5)
    assert found["freetoken_expert_hits_total"][("fake",)] == found["freetoken_expert_misses_total"][("fake",)]
    assert found["freetoken_expert_misses_per_layer"] == {("fake",): 2.0}
    assert found["freetoken_link_bytes_total"][("rtx4090-server", "fake")] > 0
    assert found["freetoken_split_fraction"].keys() == {("fake",)}
    assert 0 < found["freetoken_split_fraction"][("fake",)] <= 1
    assert found["freetoken_model_bytes"] == {("sim", "fake"): 12345.0, ("cpu", "other"): 12345.0}
    later = metrics(fresh)
    assert later["freetoken_requests_total"] == found["freetoken_requests_total"]


def test_the_counters_are_behind_the_key(own_front: OwnFront) -> None:
    front = own_front(api_key="secret", allowed_hosts=["127.0.0.1"])
    assert httpx.get(f"{front.url}/metrics").status_code == 401
    assert metrics(front, Authorization="Bearer secret")["freetoken_info"]


def test_a_model_that_goes_takes_its_counters_along(own_front: OwnFront) -> None:
    front = own_front()
    front.control("load", **ON_DEVICE)
    assert ("fake",) in metrics(front)["freetoken_expert_slots"]
    front.control("stop", model="fake")
    assert eventually(lambda: "freetoken_expert_slots" not in metrics(front))
