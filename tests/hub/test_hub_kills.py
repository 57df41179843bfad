"""`freetoken pull` as a process of its own, killed at any moment: it goes on, and the model is the same to the byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files.store import Store
from tests.hub.pulling import REPO, by_layer, contents
from tests.hub.server import Fault, HubServer

PROGRAM = (sys.executable, "-P", "-m", "freetoken_cli")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A Hub with a model of six shards, slow enough for a kill to meet a pull anywhere."""
    with HubServer() as hub:
        hub.add(REPO, by_layer())
        yield hub


def environment(home: Path, hub: HubServer) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "HF_HOME": str(home / "huggingface"),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DOWNLOAD_TIMEOUT": "3",
        "NO_PROXY": "127.0.0.1,localhost",
        "FREETOKEN_STORE": str(home / "models"),
        "PYTHONPATH": str(ROOT),
    }


def start_pull(home: Path, hub: HubServer) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "pull", REPO],
        env=environment(home, hub),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pull_whole(home: Path, hub: HubServer) -> tuple[int, str, str]:
    with start_pull(home, hub) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def pull_undisturbed(home: Path, hub: HubServer) -> tuple[dict[str, bytes], float]:
    """The model, and the seconds that it takes when nothing disturbs it."""
    start = time.monotonic()
    code, out, err = pull_whole(home, hub)
    assert (code, out) == (0, "tiny-moe\n"), err
    return contents(home / "models" / "tiny-moe"), time.monotonic() - start


def survives_kills(tmp_path: Path, hub: HubServer, kills: int, seed: int) -> None:
    hub.bytes_a_second = 2_000_000
    expected, seconds = pull_undisturbed(tmp_path / "undisturbed", hub)
    numbers = random.Random(seed)
    home = tmp_path / "killed"
    done = 0
    while done < kills:
        if (home / "models" / "tiny-moe").exists():  # it was faster than the kills: begin another one
            assert contents(home / "models" / "tiny-moe") == expected
            home = tmp_path / f"killed-{done}"
        with start_pull(home, hub) as process:
            time.sleep(numbers.uniform(0.3, max(0.6, seconds * 0.8)))
            process.send_signal(signal.SIGKILL)
        done += process.returncode == -signal.SIGKILL
    code, _, err = pull_whole(home, hub)
    assert code == 0, err
    assert contents(home / "models" / "tiny-moe") == expected
    assert not Store(home / "models").downloads("tiny-moe").exists()
    assert [entry.state for entry in Store(home / "models").entries()] == ["ready"]
    assert not (home / "huggingface").exists()


def test_three_kills(tmp_path: Path, hub: HubServer) -> None:
    survives_kills(tmp_path, hub, kills=3, seed=3)


@pytest.mark.long
def test_twenty_kills(tmp_path: Path, hub: HubServer) -> None:
    survives_kills(tmp_path, hub, kills=20, seed=20)


@pytest.mark.long
def test_twenty_kills_on_a_bad_line(tmp_path: Path, hub: HubServer) -> None:
    expected, _ = pull_undisturbed(tmp_path / "undisturbed", hub)
    numbers = random.Random(7)
    hub.bytes_a_second = 2_000_000
    for _ in range(20):
        hub.faults = [
            Fault("/storage/", drop_after=numbers.randrange(400_000)),
            Fault("/storage/", flip=numbers.randrange(400_000)),
            Fault("/storage/", ignore_range=True),
            Fault("/resolve/", status=503),
        ]
        with start_pull(tmp_path / "killed", hub) as process:
            time.sleep(numbers.uniform(0.3, 1.5))
            process.kill()
    hub.faults.clear()
    code, _, err = pull_whole(tmp_path / "killed", hub)
    assert code == 0, err
    assert contents(tmp_path / "killed" / "models" / "tiny-moe") == expected


def test_two_processes_pull_at_once(tmp_path: Path, hub: HubServer) -> None:
    hub.bytes_a_second = 1_000_000
    with start_pull(tmp_path, hub) as first:
        lock = Store(tmp_path / "models").downloads("tiny-moe")
        while not lock.exists():
            time.sleep(0.01)
        code, _, err = pull_whole(tmp_path, hub)
        assert code == 1
        assert "Another process is downloading into" in err
        assert first.wait(timeout=120) == 0
    assert pull_whole(tmp_path, hub)[0] == 0


def test_a_hub_that_dies_while_it_is_asked(tmp_path: Path, hub: HubServer) -> None:
    hub.bytes_a_second = 1_000_000
    with start_pull(tmp_path, hub) as process:
        while not hub.asked("model-00002-of-00006"):
            time.sleep(0.01)
        hub.stop()
        time.sleep(1.0)
        hub.start()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def test_the_token_is_never_printed_or_sent_elsewhere(tmp_path: Path, hub: HubServer) -> None:
    variables = environment(tmp_path, hub) | {"HF_TOKEN": "hf_secret", "FREETOKEN_DEBUG": "1", "HF_DEBUG": "1"}

    def run() -> subprocess.CompletedProcess[str]:
        command = [*PROGRAM, "pull", REPO]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)

    hub.faults = [Fault("/resolve/", status=403, headers={"X-Error-Code": "GatedRepo"})]
    refused, done = run(), run()
    assert (refused.returncode, done.returncode) == (5, 0)
    assert "Traceback" in refused.stderr
    assert "hf_secret" not in refused.stdout + refused.stderr + done.stdout + done.stderr
    assert {request.authorised for request in hub.asked("/resolve/")} == {True}
    assert {request.authorised for request in hub.asked("/storage/")} == {False}
