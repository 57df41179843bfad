"""A real front in a process of its own, over a store of models whose workers are fakes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "unit"))

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_text_files(folder: Path) -> None:
    """A tokenizer of single bytes and a few control tokens, with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([f"<|word{index}|>" for index in range(42)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@dataclass
class RunningFront:
    """The process, its address and ways to talk to it."""

    process: subprocess.Popen[bytes]
    config: dict[str, Any]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> openai.OpenAI:
        key = self.config.get("api_key") or "none"
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    @property
    def private(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=self.config["socket"])
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)

    def control(self, action: str, **body: Any) -> dict[str, Any]:
        """The answer of a control request, errors included."""
        with self.private as client:
            answer = client.get("/control/ps") if action == "ps" else client.post(f"/control/{action}", json=body)
            content: dict[str, Any] = answer.json()
            return content

    def stats(self, model: str = "fake") -> dict[str, float]:
        return self.control("stats", model=model)

    def workers(self) -> list[int]:
        """Process ids of the front's children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` comes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def start_front(store: Path, runtime: Path, *, script: Path = HERE / "run_front.py", **settings: Any) -> RunningFront:
    """A front that answers; `settings` go into its configuration."""
    config = {
        "socket": str(runtime / "front.sock"),
        "lock": str(runtime / "front.lock"),
        "store": str(store),
        "host": "127.0.0.1",
        "port": 0,
        "keep_alive": 300,
        **settings,
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-P", str(script), json.dumps(config)], env=environment)
    front = RunningFront(process, config, 0)

    def answers() -> bool:
        assert process.poll() is None, f"the front ended with {process.returncode}"
        with contextlib.suppress(httpx.TransportError), front.private as client:
            front.port = client.get("/health").json()["port"]
            return True
        return False

    assert eventually(answers, 20)
    return front


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for name in ("fake", "other", "broken", "dying"):
        (folder / name).mkdir()
        (folder / name / "ftw.json").write_text("{}")
        write_text_files(folder / name)
    return folder


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def front(store: Path) -> Iterator[RunningFront]:
    """One front for the tests of a module that leave it as they found it."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder))
        yield running
        running.stop()


@pytest.fixture
def own_front(store: Path, runtime: Path) -> Iterator[Callable[..., RunningFront]]:
    """Starts fronts for one test alone."""
    started: list[RunningFront] = []

    def start(**settings: Any) -> RunningFront:
        started.append(start_front(store, runtime, **settings))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
