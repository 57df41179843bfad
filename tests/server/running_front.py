"""A real front in a process of its own, over models whose workers are fakes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.text.text import Text
from tests.unit.fake_executor import VOCAB

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IM_END = 257
# "fake" and "other" work; fake_worker.py says what is wrong with the rest.
FAKE_MODELS = (
    "fake", "other", "broken", "crowded", "starved", "emptied", "dying", "slow", "stranger", "clinging", "sluggish",
    "stuck", "scripted", "endless", "brisk",
)  # fmt: skip

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(words: Sequence[str] = ()) -> Tokenizer:
    """Single bytes, two control tokens, `words`, and some more that fill the fake's vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(list(words))
    tokenizer.add_tokens([f"word{index} " for index in range(VOCAB - tokenizer.get_vocab_size())])
    return tokenizer


# Thinks before it answers unless told not to, and calls tools.
TOOL_TEMPLATE = """{% if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == "tool" %}{{ m.name }}: {% endif %}{{ m.content or "" }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif enable_thinking is defined %}<think>
{% endif %}{% endif %}"""


def write_text_files(folder: Path, template: str = TEMPLATE) -> None:
    """A tokenizer and a chat template."""
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_fake_models(store: Path) -> None:
    """All of `FAKE_MODELS`."""
    for name in FAKE_MODELS:
        (store / name).mkdir()
        (store / name / "ftw.json").write_text("{}")
        write_text_files(store / name, TOOL_TEMPLATE if name == "scripted" else TEMPLATE)


def saying(script: str) -> list[Any]:
    """The messages to which the model `scripted` answers `script`."""
    return [{"role": "user", "content": f"Say [[[{script}]]]"}]


@dataclass(frozen=True)
class Expected:
    """A prompt, the tokens that follow it and why they end."""

    prompt: list[int]
    tokens: list[int]
    reason: str
    vocabulary: Text

    @property
    def text(self) -> str:
        return self.vocabulary.decode(self.tokens)


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
            while True:
                answer = client.get("/control/ps") if action == "ps" else client.post(f"/control/{action}", json=body)
                if answer.status_code != 408:  # a busy machine has sent it more slowly than a hasty front waits
                    content: dict[str, Any] = answer.json()
                    return content

    def stats(self, model: str = "fake") -> dict[str, float]:
        """The counters of a model's worker."""
        counters = self.control("stats", model=model)
        assert "error" not in counters, counters
        return counters

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


def alive(pid: int) -> bool:
    """Whether a process has not ended, whoever has or has not asked for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
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


def begin_stream(front: RunningFront) -> Any:
    """A long answer of which the first piece has come."""
    chunks = front.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "go on and on"}],
        temperature=0,
        max_tokens=3000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            return chunks
    raise AssertionError("the stream ended at once")
