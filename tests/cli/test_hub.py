"""pull, run and their forecasts against a Hub on loopback that has a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from huggingface_hub import constants

from engine.files.store import Store
from tests.cli.harness import FakeFront, Home
from tests.hub.server import Fault, HubServer

REPO = "some-owner/Tiny-Mixtral"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {path.name: path.read_bytes() for path in checkpoint.iterdir()})
        yield server


@pytest.fixture
def online(home: Home, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose Hub is the one on loopback, for processes and for this one."""
    folder = home.folder / "hf"
    home.environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder)}
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    return home


def _weights_fetched(hub: HubServer) -> bool:
    """Whether more of the weights was asked for than ranges at the front, where the header is."""
    return any(not request.range.startswith("bytes=0-") for request in hub.asked(WEIGHTS))


def test_a_repository_is_pulled_after_its_cost_is_stated(online: Home, hub: HubServer) -> None:
    done = online.run("pull", REPO)
    assert (done.returncode, done.stdout) == (0, "tiny-mixtral\n"), done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("tiny-mixtral: ")
    assert " to fetch, " in first
    assert first.endswith("fits in memory.")
    assert second == "Fetching and converting tiny-mixtral"
    origin = json.loads(online.run_here("show", "tiny-mixtral", "--json").stdout)["origin"]
    assert origin == {"source": REPO, "revision": hub.refs[REPO]["main"], "licence": None}
    again = online.run("pull", REPO)
    assert again.stderr == "tiny-mixtral is in the store already.\n"
    assert not (online.paths.store / ".downloads/tiny-mixtral").exists()


def test_a_dry_run_tells_exact_sizes_and_keeps_nothing(online: Home, hub: HubServer) -> None:
    dry = json.loads(online.run_here("pull", REPO, "--dry-run", "--json").stdout)
    assert not online.paths.store.exists()
    assert not _weights_fetched(hub)
    (weights,) = [content for name, content in hub.repos[REPO][hub.refs[REPO]["main"]].items() if name == WEIGHTS]
    assert (dry["fetch"], dry["fits"], dry["short"], dry["present"]) == (len(weights), True, 0, False)
    assert dry["source"] == f"{REPO} at main (Hugging Face Hub)"
    online.run_here("pull", REPO)
    assert _weights_fetched(hub), "or the check above cannot fail"
    shown = json.loads(online.run_here("show", "tiny-mixtral", "--json").stdout)
    assert dry["disk"] == shown["dense_bytes"] + shown["expert_bytes"]


def test_an_estimate_of_what_is_not_here_is_that_of_what_will_be(
    online: Home, hub: HubServer, checkpoint: Path
) -> None:
    ahead = json.loads(online.run_here("run", REPO, "--estimate", "--json", "--kv", "1k").stdout)
    local = json.loads(online.run_here("run", str(checkpoint), "--estimate", "--json", "--kv", "1k").stdout)
    assert not online.paths.store.exists()
    assert not _weights_fetched(hub)
    assert ahead["fetch"] == (checkpoint / WEIGHTS).stat().st_size
    assert local["fetch"] == 0
    assert "not here yet" in online.run_here("run", REPO, "--estimate").stdout
    online.run_here("pull", REPO)
    here = json.loads(online.run_here("run", "tiny-mixtral", "--estimate", "--json", "--kv", "1k").stdout)
    for name in ("model", "weights", "kv_bytes", "token_bytes", "private", "context"):
        assert ahead[name] == here[name] == local[name]
    assert (here["fetch"], here["disk"]) == (0, 0)
    assert ahead["disk"] == local["disk"] > ahead["weights"]


def test_experts_in_another_codec_are_forecast_pulled_and_told(online: Home, hub: HubServer) -> None:
    codec = ("--expert-codec", "q8_0")
    dry = json.loads(online.run_here("pull", REPO, *codec, "--dry-run", "--json").stdout)
    done = online.run_here("pull", REPO, *codec, "--json")
    pulled = json.loads(done.stdout)
    requantised = pulled["requantised"]
    assert (pulled["present"], pulled["left_out"], requantised["codec"]) == (False, {}, "q8_0")
    assert done.stderr.splitlines()[-1].startswith("24 expert tensors are in q8_0 now")
    assert f"relative error (rms) of {requantised['error']:.2%}" in done.stderr
    shown = json.loads(online.run_here("show", "tiny-mixtral", "--json").stdout)
    assert dry["disk"] == shown["dense_bytes"] + shown["expert_bytes"]
    again = online.run_here("pull", REPO, *codec, "--json")
    assert json.loads(again.stdout)["requantised"] is None
    assert again.stderr == "tiny-mixtral is in the store already.\n"
    for args in (["pull", REPO], ["run", REPO, "hello"], ["pull", REPO, "--expert-codec", "mxfp4", "--dry-run"]):
        other = online.run_here(*args)
        assert other.returncode == 2
        assert "Use it as it is by its name, tiny-mixtral" in other.stderr


def test_a_family_that_does_not_run_is_refused_before_its_weights(online: Home, hub: HubServer) -> None:
    files = dict(hub.repos[REPO][hub.refs[REPO]["main"]])
    config = json.loads(files["config.json"]) | {"model_type": "mixtrall"}
    hub.add("some-owner/Strange", {**files, "config.json": json.dumps(config).encode()})
    for args in (["pull", "some-owner/Strange"], ["pull", "some-owner/Strange", "--dry-run"]):
        refused = online.run_here(*args)
        assert refused.returncode == 1
        assert "mixtrall" in refused.stderr
    assert not hub.asked(f"Strange/resolve/{hub.refs['some-owner/Strange']['main']}/{WEIGHTS}")
    assert online.run_here("list", "-q").stdout == ""


def test_run_of_a_name_that_is_not_here_pulls_it(online: Home, hub: HubServer, front: FakeFront) -> None:
    hub.add("Qwen/Qwen3-0.6B", hub.repos[REPO][hub.refs[REPO]["main"]])
    done = online.run_here("run", "qwen3-0.6b", "two words")
    assert (done.returncode, done.stdout) == (0, "TWO WORDS \n"), done.stderr
    assert done.stderr.splitlines()[0].endswith("Licence: Apache-2.0.")
    shown = online.run_here("show", "qwen3-0.6b").stdout
    assert "licence     Apache-2.0" in shown
    again = online.run_here("run", "qwen3-0.6b", "two words")
    assert "to fetch" not in again.stderr
    by_id = online.run_here("run", REPO, "three words")
    assert (by_id.returncode, by_id.stdout) == (0, "THREE WORDS \n"), by_id.stderr
    assert online.run_here("list", "-q").stdout == "qwen3-0.6b\ntiny-mixtral\n"
    assert "to fetch" not in online.run_here("run", REPO, "once more").stderr


@pytest.mark.parametrize(("answer", "pulled"), [("y", True), ("n", False), ("", False)])
def test_a_person_is_asked_before_much_is_fetched(online: Home, front: FakeFront, answer: str, pulled: bool) -> None:
    code = (
        "import sys, freetoken_cli.pulling as pulling; pulling.ASK_ABOVE = 1000\n"
        "from freetoken_cli.program import run; sys.exit(run(sys.argv[1:]))"
    )
    child = pexpect.spawn(
        sys.executable,
        ["-P", "-c", code, "run", REPO, "hello"],
        env=online.environment,
        cwd=str(online.folder),
        encoding="utf-8",
    )
    child.expect_exact("? [y/N]")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == (0 if pulled else 2)
    assert online.run_here("list", "-q").stdout == ("tiny-mixtral\n" if pulled else "")
    assert not (online.paths.store / ".downloads/tiny-mixtral").exists()


def test_what_is_asked_of_a_terminal_is_agreed_by_yes(online: Home, front: FakeFront) -> None:
    code = (
        "import sys, freetoken_cli.pulling as pulling; pulling.ASK_ABOVE = 1000\n"
        "from freetoken_cli.program import run; sys.exit(run(sys.argv[1:]))"
    )
    child = pexpect.spawn(
        sys.executable,
        ["-P", "-c", code, "run", REPO, "hello", "--yes"],
        env=online.environment,
        cwd=str(online.folder),
        encoding="utf-8",
    )
    child.expect_exact("HELLO")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_an_interrupted_pull_is_listed_goes_on_and_can_be_removed(online: Home, hub: HubServer) -> None:
    last = len(hub.repos[REPO][hub.refs[REPO]["main"]][WEIGHTS]) - 1
    hub.faults = [Fault(WEIGHTS, times=100, flip=last)]
    failed = online.run_here("pull", REPO)
    assert failed.returncode == 1
    assert "arrived damaged" in failed.stderr
    assert "(partial)" in online.run_here("list").stdout
    assert online.run_here("rm", "tiny-mixtral", "--yes").returncode == 0
    assert online.run_here("list", "-q").stdout == ""
    hub.faults = []
    assert online.run_here("pull", REPO).returncode == 0


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["pull", "some-owner/Nothing"], 3, "some-owner/Nothing"),
        (["pull", REPO, "--revision", "v9"], 3, "no such revision"),
        (["pull", REPO, "--file", "Q4_K_M"], 3, "no GGUF"),
        (["pull", "demo", "--file", "x"], 2, "--file"),
        (["pull", ".", "--revision", "x"], 2, "--revision"),
        (["run", "some-owner/Nothing", "hi"], 3, "some-owner/Nothing"),
        (["run", "some-owner/Nothing", "--estimate"], 3, "some-owner/Nothing"),
        (["run", "demo", "--estimate"], 3, "pull demo --dry-run"),
        (["pull", "zzzzzz"], 3, "list --catalogue"),
        (["pull"], 2, "list --catalogue"),
    ],
)
def test_what_cannot_be_pulled_says_why(online: Home, args: list[str], code: int, words: str) -> None:
    done = online.run_here(*args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert Store(online.paths.store).entries() == []


def test_a_hub_that_cannot_be_reached_is_exit_code_5(home: Home) -> None:
    home.environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(home.folder / "hf")}
    done = home.run("pull", REPO, HF_HUB_OFFLINE="1")
    assert done.returncode == 5
    assert "HF_HUB_OFFLINE" in done.stderr
