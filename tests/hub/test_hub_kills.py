"""`freetoken pull` as a process of its own, killed at any moment: it goes on, and the model is the same to the byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files.conversion.convert import convert
from engine.files.store import Store
from tests.cli.harness import PROGRAM, ROOT, wait_for
from tests.hub.pulling import REPO, by_layer, contents
from tests.hub.server import Fault, HubServer


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


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    """What the same files give that lie in a folder."""
    source = tmp_path / "source"
    source.mkdir()
    for name, content in by_layer().items():
        (source / name).write_bytes(content)
    convert(source, tmp_path / "expected", write_tokenizer=lambda metadata, folder: None)
    return contents(tmp_path / "expected")


def kill_after(process: subprocess.Popen[str], hub: HubServer, count: int, numbers: random.Random) -> bool:
    """Kills a pull shortly after the Hub has sent it so many bytes; whether it was not done by then."""
    limit = hub.sent + count
    while hub.sent < limit and process.poll() is None:
        time.sleep(0.002)
    time.sleep(numbers.uniform(0.0, 0.05))
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def survives_kills(tmp_path: Path, hub: HubServer, expected: dict[str, bytes], kills: int, seed: int) -> None:
    hub.bytes_a_second = 4_000_000
    numbers = random.Random(seed)
    home = tmp_path / "killed"
    done = 0
    while done < kills:
        if (home / "models" / "tiny-moe").exists():  # it was faster than the kills: begin another one
            assert contents(home / "models" / "tiny-moe") == expected
            home = tmp_path / f"killed-{done}"
        done += kill_after(start_pull(home, hub), hub, numbers.randrange(3_000_000), numbers)
    code, out, err = pull_whole(home, hub)
    assert (code, out) == (0, "tiny-moe\n"), err
    assert contents(home / "models" / "tiny-moe") == expected
    assert not Store(home / "models").downloads("tiny-moe").exists()
    assert [entry.state for entry in Store(home / "models").entries()] == ["ready"]
    assert not (home / "huggingface").exists()


def test_three_kills(tmp_path: Path, hub: HubServer, expected: dict[str, bytes]) -> None:
    survives_kills(tmp_path, hub, expected, kills=3, seed=3)


@pytest.mark.long
def test_twenty_kills(tmp_path: Path, hub: HubServer, expected: dict[str, bytes]) -> None:
    survives_kills(tmp_path, hub, expected, kills=20, seed=20)


@pytest.mark.long
def test_twenty_kills_on_a_bad_line(tmp_path: Path, hub: HubServer, expected: dict[str, bytes]) -> None:
    numbers = random.Random(7)
    hub.bytes_a_second = 2_000_000
    for _ in range(20):
        hub.faults = [
            Fault("/storage/", drop_after=numbers.randrange(400_000)),
            Fault("/storage/", flip=numbers.randrange(400_000)),
            Fault("/storage/", ignore_range=True),
            Fault("/resolve/", status=503),
        ]
        kill_after(start_pull(tmp_path / "killed", hub), hub, numbers.randrange(1_000_000), numbers)
    hub.faults.clear()
    code, _, err = pull_whole(tmp_path / "killed", hub)
    assert code == 0, err
    assert contents(tmp_path / "killed" / "models" / "tiny-moe") == expected


def test_two_processes_pull_at_once(tmp_path: Path, hub: HubServer) -> None:
    hub.bytes_a_second = 50_000  # so that the first is at it as long as the second takes
    with start_pull(tmp_path, hub) as first:
        wait_for(Store(tmp_path / "models").downloads("tiny-moe").exists)
        code, _, err = pull_whole(tmp_path, hub)
        hub.bytes_a_second = 0
        assert code == 1
        assert "Another process is downloading into" in err
        assert first.wait(timeout=120) == 0
    assert pull_whole(tmp_path, hub)[0] == 0


def test_a_hub_that_dies_while_it_is_asked(tmp_path: Path, hub: HubServer) -> None:
    hub.bytes_a_second = 500_000
    with start_pull(tmp_path, hub) as process:
        wait_for(lambda: hub.asked("model-00002-of-00006"))
        hub.stop()
        time.sleep(0.3)
        hub.bytes_a_second = 0
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
