"""Workers and fronts that are killed while a model is read for a simulated GPU: nothing stays, the next run works."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import ROOT, Home, ours, wait_for
from tests.ports import find_free_port

QUICK = ("--greedy", "--max-tokens", "4", "--device", "sim", "--experts", "50%")
PARTS = {"worker": "engine.worker", "front": "engine.front"}
SAID = {
    ("worker", signal.SIGKILL): "The model's worker was killed",
    ("worker", signal.SIGTERM): "The model's worker was ended by SIGTERM.",
    ("front", signal.SIGKILL): "The background server does not answer",
    ("front", signal.SIGTERM): "The model was unloaded before it had answered.",
}
KILLS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])

# A start-up file of Python: as long as `slow` lies there, workers read their experts over and over.
READS_ON = """
import pathlib, sys
folder = pathlib.Path(__file__).parent
if "engine.worker" in sys.orig_argv:
    from engine.experts.bank import HostBank
    load = HostBank.load
    def read_on(*args, **named):
        while (folder / "slow").exists():
            load(*args, **named).close()
            (folder / "reading").touch()
        return load(*args, **named)
    HostBank.load = staticmethod(read_on)
"""


@pytest.fixture
def slow(stored: Home) -> Iterator[Home]:
    """A home with the model `tiny`, which takes for ever to load until the file `slow` is taken away."""
    (stored.folder / "site").mkdir()
    (stored.folder / "site/sitecustomize.py").write_text(READS_ON)
    (stored.folder / "site/slow").touch()
    stored.environment["PYTHONPATH"] = f"{stored.folder / 'site'}:{ROOT}"
    yield stored
    (stored.folder / "site/slow").unlink(missing_ok=True)
    stored.run("stop", "--all")
    assert ours(stored) == []


def files(home: Home) -> set[Path]:
    """What lies in the home but for logs and what makes workers slow."""
    site = home.folder / "site"
    found = (path for path in home.folder.rglob("*") if path.is_file() and site not in path.parents)
    return {path for path in found if path.suffix != ".log"}


def is_free(lock: Path) -> bool:
    """Whether nobody holds the lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@KILLS
@pytest.mark.parametrize("victim", PARTS)
def test_under_a_run(slow: Home, victim: str, number: signal.Signals) -> None:
    before = files(slow)
    run = slow.start("run", "tiny", "hello", *QUICK)
    wait_for((slow.folder / "site/reading").exists)
    (process,) = ours(slow, PARTS[victim])
    process.send_signal(number)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out.strip()) == (1, "")
    assert SAID[victim, number] in err
    wait_for(lambda: not ours(slow, "engine.worker"))
    assert files(slow) == before
    if victim == "front":
        wait_for(lambda: not ours(slow))
        assert slow.paths.socket.exists() == (number == signal.SIGKILL)  # the next front takes it away
        wait_for(lambda: is_free(slow.paths.lock))  # a process that ends loses its command line before its locks
    goes_on(slow)
    done = slow.run("run", "tiny", "hello", *QUICK)
    assert done.returncode == 0, done.stderr
    assert [len(ours(slow, module)) for module in PARTS.values()] == [1, 1]


@KILLS
def test_under_serve(slow: Home, number: signal.Signals) -> None:
    before, port = files(slow), find_free_port()
    serve = slow.start("serve", "tiny", "--device", "sim", "--port", str(port))
    wait_for((slow.folder / "site/reading").exists)
    serve.send_signal(number)
    out, err = serve.communicate(timeout=30)
    assert "Traceback" not in err
    assert f"http://127.0.0.1:{port}" not in out
    wait_for(lambda: not ours(slow))
    assert files(slow) == before
    wait_for(lambda: is_free(slow.paths.lock))  # a process that ends loses its command line before its locks
    goes_on(slow)
    again = slow.start("serve", "tiny", "--device", "sim", "--port", str(port))
    assert again.stdout is not None
    assert f"http://127.0.0.1:{port}" in again.stdout.readline()
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=30)


def goes_on(home: Home) -> None:
    """From here on a load ends."""
    (home.folder / "site/slow").unlink()
