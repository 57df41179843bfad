"""Sessions: a conversation that is gone on with, and its context, which is reused after a restart."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.harness import FakeFront, Home, wait_for

GREEDY = ("--greedy", "--max-tokens", "24")


@pytest.fixture
def ready(home: Home, front: FakeFront) -> FakeFront:
    """A front, and a store that has a `demo` and an `other`."""
    for name in ("demo", "other"):
        folder = home.paths.store / name
        folder.mkdir(parents=True)
        (folder / "ftw.json").write_text("{}")
    return front


def _asked(front: FakeFront) -> list[str]:
    return [message["content"] for message in front.requests("/v1/chat/completions")[-1]["messages"]]


def _saved(home: Home, name: str) -> list[str]:
    document = json.loads((home.paths.sessions / f"{name}.json").read_text())
    return [message["content"] for message in document["messages"]]


def test_a_session_begins_and_goes_on(home: Home, ready: FakeFront) -> None:
    first = home.run_here("run", "demo", "hello", "--session", "rivers", "--system", "be brief")
    assert (first.returncode, first.stdout) == (0, "HELLO \n")
    assert "Saved 2 messages to rivers.\nSaved its context: 48 tokens, 4.00 KiB.\n" in first.stderr
    second = home.run_here("run", "demo", "more", "--session", "rivers")
    assert second.returncode == 0
    assert "The session rivers has 2 messages.\nRestored the context: 16 tokens of 32" in second.stderr
    assert _asked(ready) == ["be brief", "hello", "HELLO ", "more"]
    assert _saved(home, "rivers") == ["hello", "HELLO ", "more", "MORE "]
    assert home.paths.sessions.stat().st_mode & 0o777 == 0o700
    quiet = home.run_here("run", "demo", "count", "--session", "rivers", "-q", "--system", "be long")
    assert (quiet.stdout, quiet.stderr) == ("6 messages\n", "")
    assert _asked(ready)[0] == "be long", "a system prompt that is given replaces the saved one"


def test_another_model_goes_on_without_the_context(home: Home, ready: FakeFront) -> None:
    home.run_here("run", "demo", "hello", "--session", "rivers")
    done = home.run_here("run", "other", "more", "--session", "rivers")
    assert (done.returncode, done.stdout) == (0, "MORE \n")
    assert "The context is not restored, so it will be computed again: The context belongs to another" in done.stderr
    assert _saved(home, "rivers") == ["hello", "HELLO ", "more", "MORE "]


def test_what_keeps_the_context_from_being_saved_keeps_nothing_else(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "forgotten", "--session", "rivers")
    assert done.returncode == 0
    assert "Saved 2 messages to rivers.\nThe context is not saved, so it will be computed again: Not" in done.stderr
    assert _saved(home, "rivers") == ["forgotten", "FORGOTTEN "]


def test_a_first_question_that_fails_begins_no_session(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "die", "--session", "rivers")
    assert done.returncode == 1
    assert _saved(home, "rivers") == ["die", "half an ans"], "an answer that broke off is kept as far as it came"
    assert home.run_here("run", "huge", "hello", "--session", "lakes", "--yes").returncode != 0
    assert not (home.paths.sessions / "lakes.json").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "x" * 101])
def test_names_that_cannot_be(home: Home, ready: FakeFront, name: str) -> None:
    done = home.run_here("run", "demo", "hello", "--session", name)
    assert done.returncode == 2
    assert "cannot be the name of a session" in done.stderr
    assert not home.paths.sessions.exists()


def test_a_damaged_conversation_is_told_before_anything_is_loaded(home: Home, ready: FakeFront) -> None:
    home.paths.sessions.mkdir()
    (home.paths.sessions / "rivers.json").write_text("[]")
    done = home.run_here("run", "demo", "hello", "--session", "rivers")
    assert done.returncode == 1
    assert "rivers.json is not a conversation" in done.stderr
    assert "begin anew" in done.stderr
    assert ready.requests() == []
    assert (home.paths.sessions / "rivers.json").read_text() == "[]", "it is not written over"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_answer_is_saved_as_far_as_it_came(
    home: Home, ready: FakeFront, number: signal.Signals, code: int
) -> None:
    process = home.start("run", "demo", "slow", "--session", "rivers", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    wait_for(lambda: process.stdout is not None and process.stdout.read(8))
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    question, said = _saved(home, "rivers")
    assert question == "slow"
    assert said.startswith("0 1 2")


def test_two_processes_do_not_undo_what_the_other_saved(home: Home, ready: FakeFront) -> None:
    first = home.start("run", "demo", "slow", "--session", "rivers", stdin=subprocess.DEVNULL)
    assert first.stdout is not None
    wait_for(lambda: first.stdout is not None and first.stdout.read(8))
    second = home.run_here("run", "demo", "hello", "--session", "rivers")
    assert (second.returncode, second.stdout) == (1, "")
    assert "Another process goes on with the session rivers" in second.stderr
    assert home.run_here("run", "demo", "hello", "--session", "lakes").returncode == 0
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=20)
    assert home.run_here("run", "demo", "hello", "--session", "rivers").returncode == 0
    assert _saved(home, "rivers") == ["hello", "HELLO "]
    assert sorted(path.name for path in home.paths.sessions.glob(".*")) == []


def test_sessions_are_no_models(home: Home, ready: FakeFront) -> None:
    home.run_here("run", "demo", "hello", "--session", "rivers")
    listed = json.loads(home.run_here("list", "--json").stdout)
    assert {model["name"] for model in listed["models"]} == {"demo", "other"}


def test_a_restart_costs_no_context_and_no_bit(alive: Home) -> None:
    """The second question is answered as by a server that never stopped, without computing the first again."""
    first = alive.run_here("run", "tiny", "hello there, tell me of rivers", *GREEDY, "--session", "whole")
    assert first.returncode == 0, first.stderr
    shutil.copytree(alive.paths.sessions, alive.folder / "sessions")
    expected = alive.run_here("run", "tiny", "and of lakes", *GREEDY, "--session", "whole", "-v")
    alive.run_here("stop", "--all")
    shutil.rmtree(alive.paths.sessions)
    shutil.copytree(alive.folder / "sessions", alive.paths.sessions)

    again = alive.run_here("run", "tiny", "and of lakes", *GREEDY, "--session", "whole", "-v")
    assert again.returncode == 0, again.stderr
    restored = re.search(r"^Restored the context: (\d+) tokens\.$", again.stderr, re.MULTILINE)
    assert restored is not None
    reused = re.search(r"^reused +(\d+) of (\d+) tokens: what follows its first", again.stderr, re.MULTILINE)
    assert reused is not None
    assert int(reused[1]) == int(restored[1]) >= 32
    assert again.stdout == expected.stdout

    alive.run_here("stop", "--all")
    (alive.paths.sessions / "whole.json.context").unlink()
    _undo(alive)
    cold = alive.run_here("run", "tiny", "and of lakes", *GREEDY, "--session", "whole", "-v")
    assert "Restored" not in cold.stderr
    assert re.search(r"^reused +0 of \d+ tokens: nothing like it", cold.stderr, re.MULTILINE)
    assert cold.stdout == expected.stdout


def _undo(home: Home) -> None:
    """Back to the conversation after the first answer."""
    shutil.copy(home.folder / "sessions" / "whole.json", home.paths.sessions / "whole.json")


def test_a_model_that_was_removed_and_made_again(alive: Home, checkpoint: Path, converted: Path) -> None:
    alive.run_here("run", "tiny", "hello there, tell me of rivers", *GREEDY, "--session", "rivers")
    alive.run_here("stop", "--all")
    assert alive.run_here("rm", "tiny", "--yes").returncode == 0
    assert alive.run_here("run", "tiny", "more", "--session", "rivers").returncode == 3, "there is no such model now"
    assert len(_saved(alive, "rivers")) == 2
    shutil.copytree(converted, alive.paths.store / "tiny")
    same = alive.run_here("run", "tiny", "more", *GREEDY, "--session", "rivers")
    assert "Restored the context" in same.stderr
    alive.run_here("stop", "--all")
    alive.run_here("rm", "tiny", "--yes")
    assert alive.run_here("convert", str(checkpoint), "--name", "tiny", "--expert-codec", "q8_0").returncode == 0
    other = alive.run_here("run", "tiny", "more", *GREEDY, "--session", "rivers")
    assert other.returncode == 0, other.stderr
    assert "belongs to another conversion of tiny" in other.stderr


def test_another_device_is_refused(alive: Home) -> None:
    alive.run_here("run", "tiny", "hello there, tell me of rivers", *GREEDY, "--session", "rivers")
    done = alive.run_here("run", "tiny", "more", *GREEDY, "--session", "rivers", "--device", "sim")
    assert done.returncode == 0, done.stderr
    assert "was saved on the device cpu, and the model runs on sim" in done.stderr
    back = alive.run_here("run", "tiny", "more", *GREEDY, "--session", "rivers", "--device", "sim", "-v")
    assert "Restored the context" in back.stderr
