"""Fronts over real tiny models for tests of many requests at once, and streams that note when their tokens come."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import engine.front
from engine.files.conversion.convert import convert
from engine.text.gguf_tokenizer import write_tokenizer
from engine.text.text import Text
from tests.parity.tiny import save
from tests.server.running_front import RunningFront
from tests.turns.served import MODELS, sayable, write_bytes_tokenizer
from tests.unit.fake_executor import VOCAB

FRONT = Path(engine.front.__path__[0]) / "__main__.py"
PAGE = 16
HELD = ("kv_tokens_held", "windows_held", "states_held", "active", "waiting")


def long_store(folder: Path, kinds: Sequence[str], context: int = 32768, **settings: Any) -> Path:
    """A store with some of `MODELS`, whose contexts are `context` long and which differ by `settings`."""
    store = folder / "store"
    store.mkdir(exist_ok=True)
    for kind in kinds:
        case, checkpoint = MODELS[kind], folder / kind
        changes = {"vocab_size": VOCAB, "max_position_embeddings": context, **settings}
        save(replace(case, settings={**case.settings, **changes}), checkpoint)
        write_bytes_tokenizer(checkpoint)
        convert(checkpoint, store / kind, write_tokenizer=write_tokenizer)
    return store


def letters(seed: int, count: int) -> list[int]:
    """A prompt of `count` tokens, all of them single characters; a longer one of the same seed begins with it."""
    return Random(seed).choices(range(94), k=count)


@dataclass
class Listener:
    """One streamed completion as its client sees it: texts and seconds at which they came, and how far the prompt is
    read."""

    status: int = 0
    texts: list[str] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # log probabilities, if they were asked for
    read: int = 0
    error: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    over: bool = False
    _writer: asyncio.StreamWriter | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to leave."""
        return self._writer is not None

    async def listen(self, front: RunningFront, body: Mapping[str, Any], path: str = "/v1/completions") -> Listener:
        """Send the request and follow the answer to its end."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", front.port, limit=1 << 22)
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            self._writer.write(head.encode() + data)
            await self._writer.drain()
            async for line in reader:
                self._take(line.strip())
        except ConnectionError:
            pass  # we left
        self.over = True
        self._writer.close()
        return self

    def leave(self) -> None:
        """Hang up at once, as a killed client does."""
        assert self._writer is not None
        self._writer.transport.abort()

    def _take(self, line: bytes) -> None:
        if not self.status:
            self.status = int(line.split()[1])
        elif line.startswith(b": reading "):
            self.read = int(line.split()[2])
        elif line.startswith(b'{"error"'):
            self.error = json.loads(line)["error"]
        elif line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            self.error = event.get("error")
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices", ()):
                self.scores += (choice.get("logprobs") or {}).get("token_logprobs", ())
                if choice["text"]:
                    self.texts.append(choice["text"])
                    self.arrivals.append(time.monotonic())


@dataclass(frozen=True)
class Crowd:
    """Starts listeners to one model of a front and asks it how it is."""

    front: RunningFront
    model: str

    @cached_property
    def bias(self) -> dict[str, int]:
        """Towards tokens that are told at once."""
        return sayable(Text.load(Path(self.front.config["store"]) / self.model))

    def body(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """A greedy request whose every token is a character that is told at once."""
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logit_bias": self.bias,
        }

    def ask(self, prompt: Sequence[int], tokens: int, **more: Any) -> tuple[Listener, asyncio.Task[Listener]]:
        """A listener and its task; `more` goes into the request."""
        listener = Listener()
        return listener, asyncio.create_task(listener.listen(self.front, {**self.body(prompt, tokens), **more}))

    async def stats(self) -> dict[str, float]:
        return await asyncio.to_thread(self.front.stats, self.model)

    async def alone(self, prompt: Sequence[int], tokens: int) -> str:
        """The whole answer to one request."""
        _, task = self.ask(prompt, tokens)
        return (await task).text

    def descriptors(self) -> int:
        """Open files of the front and of its workers."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (self.front.process.pid, *self.front.workers()))


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for `condition`; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
