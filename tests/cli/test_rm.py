"""rm: what it asks, what it leaves alone, and models that are loaded meanwhile."""

import shutil
import subprocess

import pexpect
import pytest

from freetoken_cli.client import Front
from tests.cli.harness import PROGRAM, FakeFront, Home, wait_for


def test_rm_from_a_script_needs_yes(stored: Home) -> None:
    assert stored.run_here("rm", "tiny").returncode == 2
    assert stored.run_here("list", "-q").stdout == "tiny\n"
    done = stored.run_here("rm", "tiny", "--yes")
    assert (done.returncode, done.stdout) == (0, "tiny\n")
    assert stored.run_here("list", "-q").stdout == ""


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, ""), ("n", 2, "tiny\n"), ("", 2, "tiny\n")])
def test_rm_asks_on_a_terminal(stored: Home, answer: str, code: int, left: str) -> None:
    child = pexpect.spawn(
        PROGRAM[0], [*PROGRAM[1:], "rm", "tiny"], env=stored.environment, cwd=str(stored.folder), encoding="utf-8"
    )
    child.expect_exact("Remove tiny (")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    assert stored.run_here("list", "-q").stdout == left


def test_rm_removes_all_or_nothing(stored: Home) -> None:
    assert stored.run_here("rm", "tiny", "other", "--yes").returncode == 3
    assert stored.run_here("list", "-q").stdout == "tiny\n"


def test_rm_of_what_is_unfinished_leaves_the_models(stored: Home) -> None:
    nothing = stored.run_here("rm", "--unfinished")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    for begun in (stored.paths.store / "tiny.partial", stored.paths.store / ".downloads" / "other"):
        begun.mkdir(parents=True)
        (begun / "dense.safetensors").write_bytes(bytes(40_000))
    assert stored.run_here("rm", "--unfinished", "tiny", "--yes").stdout == "tiny\n"
    assert stored.run_here("rm", "--unfinished", "tiny", "--yes").returncode == 3
    assert stored.run_here("list", "-q").stdout == "other\ntiny\n"
    done = stored.run_here("rm", "--unfinished", "--yes")
    assert (done.returncode, done.stdout) == (0, "other\n")
    assert stored.run_here("list", "-q").stdout == "tiny\n"
    assert stored.run_here("verify", "tiny").returncode == 0


def test_rm_leaves_a_loaded_model_alone(stored: Home, front: FakeFront) -> None:
    stored.run_here("run", "tiny", "hi")
    done = stored.run_here("rm", "tiny", "--yes")
    assert done.returncode == 1
    assert "freetoken stop tiny" in done.stderr
    assert stored.run_here("list", "-q").stdout == "tiny\n"


def test_rm_leaves_a_model_alone_that_is_being_loaded(stored: Home, front: FakeFront) -> None:
    shutil.copytree(stored.paths.store / "tiny", stored.paths.store / "late")
    waiting = subprocess.Popen([*PROGRAM, "run", "late", "hi"], env=stored.environment, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: Front(stored.paths.socket).in_use() == (set(), {"late"}))
        done = stored.run_here("rm", "late", "--yes")
        assert (done.returncode, "late is being loaded." in done.stderr) == (1, True)
        assert stored.run_here("list", "-q").stdout == "late\ntiny\n"
    finally:
        waiting.kill()
        waiting.wait()


def test_rm_looks_again_once_its_question_is_answered(stored: Home, front: FakeFront) -> None:
    child = pexpect.spawn(
        PROGRAM[0], [*PROGRAM[1:], "rm", "tiny"], env=stored.environment, cwd=str(stored.folder), encoding="utf-8"
    )
    child.expect_exact("Remove tiny (")
    stored.run_here("run", "tiny", "hi")
    child.sendline("y")
    child.expect_exact("tiny is loaded.")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
    assert stored.run_here("list", "-q").stdout == "tiny\n"
