"""Coding agents, started as `freetoken launch` does, write a file for a model that says what it is told to.

They are found on the PATH or in build/agents, where `make test-agents` puts them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from freetoken_cli.agents import AGENTS, Server, command_of, environment_of
from tests.server.running_front import TOOL_TEMPLATE, RunningFront, start_front, write_text_files

pytestmark = pytest.mark.long
INSTALLED = Path(__file__).parents[2] / "build" / "agents"
SEARCHED = os.pathsep.join(
    [str(INSTALLED / "node_modules" / ".bin"), str(INSTALLED / "aider" / "bin"), os.environ["PATH"]]
)
MODEL = "scripted"
CONTEXT = 1 << 18


@pytest.fixture(scope="module")
def scripted() -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        model = Path(folder) / "store" / MODEL
        model.mkdir(parents=True)
        (model / "ftw.json").write_text("{}")
        write_text_files(model, TOOL_TEMPLATE)
        front = start_front(model.parent, Path(folder))
        front.control("load", model=MODEL, context=CONTEXT)
        yield front
        front.stop()


def run_agent(front: RunningFront, name: str, work: Path, arguments: list[str], asked: str = "") -> str:
    """What an agent prints that is run in `work`, with a home of its own and `asked` as its input."""
    agent = next(each for each in AGENTS if each.name == name)
    program = shutil.which(agent.program, path=SEARCHED)
    if program is None:
        pytest.skip(f"{agent.program} is not installed: make test-agents")
    home = work.parent / "home"
    home.mkdir()
    server = Server(front.url, MODEL, context=CONTEXT)
    own = {"HOME": str(home), "PWD": str(work), "PATH": SEARCHED}
    environment = environment_of(agent, server, {**os.environ, **own})
    command = [program, *command_of(agent, server, arguments)[1:]]
    done = subprocess.run(command, env=environment, cwd=work, input=asked, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_claude_code_writes_a_file(scripted: RunningFront, work: Path) -> None:
    thinks = "<think>\nHm.\n</think>\n\n"
    scripts = [thinks + call("Write", file_path=str(work / "new.txt"), content="made"), f"{thinks}It is done."]
    prompt = "Say " + " then ".join(f"[[[{script}]]]" for script in scripts)
    said = run_agent(scripted, "claude", work, ["-p", prompt, "--permission-mode", "acceptEdits"])
    assert (work / "new.txt").read_text() == "made"
    assert "It is done." in said


def test_codex_writes_a_file_and_shows_what_the_model_thinks(scripted: RunningFront, work: Path) -> None:
    """It shows reasoning that comes as a summary, which it asks for, and no other."""
    thinks = "<think>\nI ponder.\n</think>\n\n"
    scripts = [thinks + call("exec_command", cmd="printf made > new.txt"), f"{thinks}It is done."]
    prompt = "Say " + " then ".join(f"[[[{script}]]]" for script in scripts)
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    said = run_agent(scripted, "codex", work, ["exec", *flags, "--json", prompt])
    told = [json.loads(line).get("item", {}) for line in said.splitlines()]
    assert [item["text"] for item in told if item.get("type") == "reasoning"] == ["I ponder."] * 2
    assert (work / "new.txt").read_text() == "made"
    assert "It is done." in said


def test_opencode_writes_a_file(scripted: RunningFront, work: Path) -> None:
    """It is asked on its standard input: a quote among its arguments reaches the model with a backslash."""
    scripts = [call("write", filePath=str(work / "new.txt"), content="made"), "It is done."]
    prompt = "Say " + " then ".join(f"[[[{script}]]]" for script in scripts)
    said = run_agent(scripted, "opencode", work, ["run"], asked=prompt)
    assert (work / "new.txt").read_text() == "made"
    assert "It is done." in said


def test_qwen_code_writes_a_file(scripted: RunningFront, work: Path) -> None:
    scripts = [call("write_file", file_path=str(work / "new.txt"), content="made"), "It is done."]
    prompt = "Say " + " then ".join(f"[[[{script}]]]" for script in scripts)
    said = run_agent(scripted, "qwen", work, ["-p", prompt, "--approval-mode", "yolo"])
    assert (work / "new.txt").read_text() == "made"
    assert "It is done." in said


def test_aider_changes_a_file(scripted: RunningFront, work: Path) -> None:
    """Its edits are text, not calls of tools."""
    (work / "old.txt").write_text("old\n")
    prompt = "Say [[[old.txt\n```\nmade\n```\n]]]"
    run_agent(scripted, "aider", work, ["--yes-always", "--no-git", "--message", prompt, "old.txt"])
    assert (work / "old.txt").read_text() == "made\n"


def test_the_second_turn_of_an_agent_reuses_the_first(scripted: RunningFront, work: Path) -> None:
    before = scripted.stats(MODEL)
    run_agent(scripted, "codex", work, ["exec", "--skip-git-repo-check", "Say [[[Hello.]]]"])
    run = scripted.stats(MODEL)
    assert run["prompt_tokens"] > before["prompt_tokens"]
    assert run["cached_tokens"] > before["cached_tokens"]
