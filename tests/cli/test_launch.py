"""`freetoken launch`: what an agent is given, and a server that comes and goes with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from freetoken_cli.agents import AGENTS, Server, command_of, environment_of, variables_of
from freetoken_cli.front_process import Health, health
from freetoken_cli.launching import file_written
from tests.cli.harness import Home, wait_for

SERVER = Server("http://127.0.0.1:9", "some-model", "key", 32768)


@pytest.mark.parametrize("agent", AGENTS, ids=[agent.name for agent in AGENTS])
def test_an_agent_is_told_where_and_which(agent: object) -> None:
    told = json.dumps([variables_of(agent, SERVER), command_of(agent, SERVER, ())])  # type: ignore[arg-type]
    assert "http://127.0.0.1:9" in told
    assert "some-model" in told
    assert "{" not in told.replace('{"', "").replace("{\\", "")  # nothing is left to be filled in
    without = replace(SERVER, context=0)
    told = json.dumps([variables_of(agent, without), command_of(agent, without, ())])  # type: ignore[arg-type]
    assert not any(word in told for word in ("{context}", "limit", "COMPACT", "model_context_window"))


def test_agents_that_shorten_conversations_are_told_when() -> None:
    told = {agent.name: (variables_of(agent, SERVER), command_of(agent, SERVER, ())) for agent in AGENTS}
    assert told["claude"][0]["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "32768"
    place = told["codex"][1].index("model_context_window=32768")
    assert told["codex"][1][place - 1] == "-c"
    config = json.loads(told["opencode"][0]["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["freetoken"]["models"]["some-model"]["limit"] == {"context": 32768, "output": 8192}


def test_no_key_of_an_account_reaches_an_agent() -> None:
    paid = {
        "ANTHROPIC_API_KEY": "sk", "OPENAI_API_KEY": "sk", "GEMINI_API_KEY": "sk", "OPENROUTER_API_KEY": "sk",
        "AWS_SECRET_ACCESS_KEY": "sk", "AWS_SESSION_TOKEN": "sk", "GOOGLE_APPLICATION_CREDENTIALS": "sk",
        "CLAUDE_CODE_OAUTH_TOKEN": "sk", "anthropic_auth_token": "sk", "ANTHROPIC_CUSTOM_HEADERS": "sk",
        "CLAUDE_CODE_USE_BEDROCK": "1", "OPENAI_BASE_URL": "https://sk.example", "FREETOKEN_API_KEY": "sk",
    }  # fmt: skip
    for agent in AGENTS:
        environment = environment_of(agent, SERVER, {**paid, "PATH": "/bin", "EDITOR": "vi"})
        assert not any("sk" in value for value in environment.values())
        assert (environment["PATH"], environment["EDITOR"]) == ("/bin", "vi")


def test_a_dry_run_starts_nothing(home: Home) -> None:
    done = home.run_here("launch", "claude", "demo", "--dry-run", "--", "-p", "two words")
    assert (done.returncode, done.stderr) == (0, "")
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8642\n" in done.stdout
    assert done.stdout.endswith("claude -p 'two words'\n")
    table = json.loads(home.run_here("launch", "codex", "demo", "--dry-run", "--json").stdout)
    assert table["command"][0] == "codex"
    assert json.loads(home.run_here("ps", "--json").stdout)["models"] == []


def test_a_dry_run_names_the_server_that_runs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freetoken_cli.launching.health", lambda socket: Health("0.1.0", "127.0.0.1", 9000))
    done = home.run_here("launch", "aider", "demo", "--dry-run")
    assert done.stdout.startswith("export OPENAI_API_BASE=http://127.0.0.1:9000/v1\n")
    monkeypatch.setattr("freetoken_cli.launching.health", lambda socket: Health("0.1.0", None, None))
    done = home.run_here("launch", "aider", "demo", "--dry-run")
    assert done.stdout.startswith("export OPENAI_API_BASE=http://127.0.0.1:8642/v1\n"), "one without a port"


def test_what_is_missing_is_said(stored: Home) -> None:
    done = stored.run_here("launch", "clade", "demo", "--dry-run")
    assert (done.returncode, done.stdout) == (3, "")
    assert "claude" in done.stderr
    done = stored.run_here("launch", "claude", "tiny", PATH="/nowhere")
    assert done.returncode == 3
    assert "npm install -g @anthropic-ai/claude-code" in done.stderr


def test_aider_is_told_of_the_context_in_a_file_that_is_there_while_it_runs(home: Home) -> None:
    aider = next(agent for agent in AGENTS if agent.name == "aider")
    told = {"openai/some-model": {"max_input_tokens": 32768, "max_output_tokens": 8192}}
    with file_written(aider, SERVER) as named:
        path = Path(named["AIDER_MODEL_METADATA_FILE"])
        (entry,) = json.loads(path.read_text()).items()
        assert entry == (
            "openai/some-model",
            {**told["openai/some-model"], "litellm_provider": "openai", "mode": "chat"},
        )
    assert not path.exists()
    with file_written(aider, replace(SERVER, context=0)) as named:
        assert named == {}


def test_what_a_dry_run_prints_can_be_run(home: Home) -> None:
    programs = home.folder / "bin"
    programs.mkdir()
    (programs / "aider").write_text('#!/bin/sh\ncat "$AIDER_MODEL_METADATA_FILE"; rm "$AIDER_MODEL_METADATA_FILE"\n')
    (programs / "aider").chmod(0o755)
    printed = home.run_here("launch", "aider", "demo", "--context", "32k", "--dry-run").stdout
    path = f"{programs}:{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-ec", printed], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["openai/demo"]["max_input_tokens"] == 32768
    table = json.loads(home.run_here("launch", "aider", "demo", "--context", "32k", "--dry-run", "--json").stdout)
    assert table["files"]["AIDER_MODEL_METADATA_FILE"] == json.loads(ran.stdout)
    assert json.loads(home.run_here("launch", "aider", "demo", "--dry-run", "--json").stdout)["files"] == {}


ASKING = """#!{python}
import json, os, sys, urllib.request
messages = [{{"role": "user", "content": sys.argv[1]}}]
body = {{"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 3, "messages": messages}}
headers = {{"Authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["usage"]["output_tokens"], os.environ.get("ANTHROPIC_API_KEY"))
sys.exit(7)
"""


@pytest.fixture
def path(stored: Home) -> str:
    """PATH with an agent `claude` that asks once."""
    programs = stored.folder / "bin"
    programs.mkdir()
    (programs / "claude").write_text(ASKING.format(python=sys.executable))
    (programs / "claude").chmod(0o755)
    return f"{programs}:{stored.environment['PATH']}"


def test_an_agent_finds_a_server_that_leaves_with_it(stored: Home, path: str) -> None:
    done = stored.run("launch", "claude", "tiny", "--", "hello", PATH=path, ANTHROPIC_API_KEY="sk-paid")
    assert (done.returncode, done.stdout) == (7, "3 None\n"), done.stderr
    assert "claude asks tiny at http://127.0.0.1:" in done.stderr
    wait_for(lambda: health(stored.paths.socket) is None)


def test_the_key_of_a_server_is_asked_for_and_passed_on(stored: Home, path: str) -> None:
    server = stored.start("serve", "tiny", "--port", "0", "--api-key", "secret")
    try:
        wait_for(lambda: (found := health(stored.paths.socket)) is not None and found.port is not None)
        for flags, words in ([], "wants a key"), (["--api-key", "other"], "wants another key"):
            refused = stored.run("launch", "claude", "tiny", *flags, "--", "hello", PATH=path)
            assert (refused.returncode, refused.stdout, words in refused.stderr) == (2, "", True), refused.stderr
        done = stored.run("launch", "claude", "tiny", "--api-key", "secret", "--", "hello", PATH=path)
        assert (done.returncode, done.stdout) == (7, "3 None\n"), done.stderr
        dry = stored.run_here("launch", "claude", "tiny", "--dry-run", FREETOKEN_API_KEY="secret")
        assert "export ANTHROPIC_AUTH_TOKEN=secret\n" in dry.stdout
    finally:
        server.terminate()
        server.wait()
