"""Ctrl-C and SIGTERM in the middle of pull and convert: said, nothing lost, nobody left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.harness import Home, wait_for
from tests.hub.pulling import by_layer
from tests.hub.server import Fault, HubServer

REPO = "some-owner/Tiny-Mixtral"
KEPT = "Interrupted. What was fetched and converted is kept: run the same command to go on."

# Packs so slowly that a signal meets it in the middle: SECONDS a write, but for the first ones.
SLOWLY = """
import itertools, time
from engine.files.conversion.partial import Partial
write = Partial.write
writes = itertools.count()
def write_slowly(*args):
    time.sleep(SECONDS if next(writes) > 2 else 0)
    write(*args)
Partial.write = write_slowly
"""
NEVER_DONE, DONE_LATE = (SLOWLY.replace("SECONDS", seconds) for seconds in ("20", "0.2"))
# Cleans up as with a disk that does not answer; says in a file that it has begun to.
STUCK = """
import pathlib, time
from engine.files.conversion.partial import Partial
def leave(*error):
    pathlib.Path("cleaning up").touch()
    time.sleep(60)
Partial.__exit__ = leave
"""
# Writes a trace so slowly that a signal meets it in the middle.
TOKEN_BY_TOKEN = """
import time
from engine.experts.trace import TraceWriter
write = TraceWriter.token
def write_slowly(*args):
    time.sleep(0.02)
    write(*args)
TraceWriter.token = write_slowly
"""
TRACE = ("bench", "tiny", "--tokens", "4", "--device", "sim", "--trace")


def start(home: Home, changes: str, *args: str) -> subprocess.Popen[str]:
    """`freetoken ARGS` as a process in which `changes` were made before it began."""
    code = f"{changes}\nimport sys\nfrom freetoken_cli.main import main\nsys.exit(main())"
    return home.start_python("-P", "-c", code, *args)


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str, float]:
    """Sends a signal; the exit code, stderr, and the seconds until the process was gone."""
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert "Traceback" not in err
    return process.returncode, err, time.monotonic() - began


@pytest.fixture
def hub(home: Home) -> HubServer:
    """A Hub on loopback that takes many seconds to send a model of six shards."""
    with HubServer() as server:
        server.add(REPO, by_layer())
        server.bytes_a_second = 200_000
        home.environment |= {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(home.folder / "hf")}
        yield server


def is_under_way(hub: HubServer) -> bool:
    """Whether the second shard is asked for beyond its header."""
    return any(not request.range.startswith("bytes=0-") for request in hub.asked("model-00002-of-00006"))


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGINT, 130, KEPT), (signal.SIGTERM, 143, "")])
def test_a_pull_that_is_ended_says_so_and_goes_on(
    home: Home, hub: HubServer, number: int, code: int, said: str
) -> None:
    pull = home.start("pull", REPO)
    wait_for(lambda: is_under_way(hub))
    found, err, seconds = end(pull, number)
    assert found == code
    assert err.splitlines()[2:] == ([said] if said else []), err
    assert seconds < 10
    assert not (home.paths.store / "tiny-mixtral").exists()
    assert "(partial)" in home.run("list").stdout
    hub.bytes_a_second = 0
    assert home.run("pull", REPO, "-q").stdout == "tiny-mixtral\n"
    assert home.run("verify", "tiny-mixtral").returncode == 0
    assert not (home.paths.store / ".downloads/tiny-mixtral").exists()


def test_a_pull_that_is_ended_before_it_has_begun_keeps_nothing(home: Home, hub: HubServer) -> None:
    hub.faults = [Fault("/api/", sleep_after=0, sleep=5)]
    pull = home.start("pull", REPO)
    wait_for(lambda: hub.asked("/api/"))
    code, err, seconds = end(pull, signal.SIGINT)
    assert (code, err) == (130, "Interrupted. Nothing was fetched yet.\n")
    assert seconds < 4
    assert home.run("list", "-q").stdout == ""
    assert not (home.paths.store / ".downloads/tiny-mixtral").exists()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "Interrupted. What was converted is kept: run the same command to go on.\n"),
        (signal.SIGTERM, 143, ""),
    ],
)
def test_a_conversion_that_is_ended_says_so_and_goes_on(
    home: Home, checkpoint: Path, number: int, code: int, said: str
) -> None:
    assert home.run("convert", str(checkpoint), "whole").returncode == 0
    process = start(home, NEVER_DONE, "convert", str(checkpoint), "out")
    wait_for((home.folder / "out.partial/dense.safetensors").exists)
    found, err, _ = end(process, number)
    assert (found, err) == (code, f"Converting {checkpoint}\n{said}")
    assert sorted(path.name for path in home.folder.glob("out*")) == ["out.partial"]
    assert home.run("convert", str(checkpoint), "out").returncode == 0
    assert sorted(path.name for path in home.folder.glob("out*")) == ["out"]
    for path in (home.folder / "whole").iterdir():
        assert (home.folder / "out" / path.name).read_bytes() == path.read_bytes()


def test_a_second_ctrl_c_does_not_wait(home: Home, checkpoint: Path) -> None:
    process = start(home, NEVER_DONE + STUCK, "convert", str(checkpoint), "out")
    wait_for((home.folder / "out.partial/dense.safetensors").exists)
    process.send_signal(signal.SIGINT)
    wait_for((home.folder / "cleaning up").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    code, _, seconds = end(process, signal.SIGINT)
    assert code == 130
    assert seconds < 5
    assert home.run("convert", str(checkpoint), "out").returncode == 0


def test_ctrl_c_is_not_heard_where_it_was_switched_off(home: Home, checkpoint: Path) -> None:
    """As in a script's background jobs."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{DONE_LATE}"
    process = start(home, code, "convert", str(checkpoint), "out")
    wait_for((home.folder / "out.partial/dense.safetensors").exists)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "out\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_installer_that_fetches_a_package_ends_too(home: Home, number: int, code: int) -> None:
    temporary = home.folder / "tmp"
    temporary.mkdir()
    changes = "from engine.files.pulling import package; package._installed_file = lambda source: None"
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(30)
        home.environment |= {
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple",
            "PIP_CONFIG_FILE": "/dev/null",
            "TMPDIR": str(temporary),
        }
        pull = start(home, changes, "pull", "demo")
        connection, _ = index.accept()  # by the installer, which waits for an answer from now on
        children = psutil.Process(pull.pid).children(recursive=True)
        assert children
        found, err, seconds = end(pull, number)
        connection.close()
    assert found == code
    assert ("Interrupted. Nothing was fetched yet." in err) == (number == signal.SIGINT)
    assert seconds < 10
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(temporary.iterdir()) == []
    assert not (home.paths.store / ".downloads/demo").exists()
    assert home.run("list", "-q").stdout == ""


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_recording_that_is_ended_leaves_no_half_trace(stored: Home, name: str, number: int, code: int) -> None:
    process = start(stored, TOKEN_BY_TOKEN, *TRACE, name)
    partial = stored.folder / f"{name}.partial"
    wait_for(partial.exists)
    found, _, seconds = end(process, number)
    assert found == code
    assert seconds < 10
    assert list(stored.folder.glob("t.*")) == []


def test_a_recording_that_is_killed_keeps_its_tokens_apart_until_the_next_one(stored: Home) -> None:
    process = start(stored, TOKEN_BY_TOKEN, *TRACE, "t.jsonl.gz")
    partial = stored.folder / "t.jsonl.gz.partial"
    wait_for(lambda: partial.exists() and partial.stat().st_size > 200)
    process.kill()
    process.communicate()
    assert [path.name for path in stored.folder.glob("t.*")] == [partial.name]
    refused = stored.run("replay", partial.name, "--warmup", "0")
    assert refused.returncode == 1
    assert "cut short" in refused.stderr
    done = stored.run(*TRACE, "t.jsonl.gz")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in stored.folder.glob("t.*")] == ["t.jsonl.gz"]
    assert stored.run("replay", "t.jsonl.gz", "--warmup", "0", "--json").returncode == 0
    again = stored.run(*TRACE, "t.jsonl.gz")
    assert again.returncode == 2
    assert "is there already" in again.stderr
