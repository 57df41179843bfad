"""The two servers of a comparison, with the same weights, tokenizer and chat template and as much room for contexts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import engine.front
from engine.files.conversion.convert import convert
from engine.text.text import Text
from tests.bench.agents.speaking import INTERFACES, TIMEOUT, Heard, ask_all
from tests.bench.agents.workloads import Ask, Workload
from tests.bench.llama_cpp import LlamaCpp
from tests.bench.random_moe import Codecs, random_moe
from tests.bench.shapes import Shape
from tests.server.running_front import start_front
from tests.turns.served import TEMPLATE, sayable, write_smollm2

OURS, THEIRS = "freetoken", "llama-server"
LONGEST = 65536
LARGE = Shape(context=LONGEST)
"""The model of `make bench-peers`, but for its context."""
ROOM = 2  # contexts: a long one, the agents beside it, and some of what went before


@dataclass(frozen=True)
class Model:
    """The random MoE in both forms."""

    gguf: Path
    store: Path
    name: str

    @property
    def text(self) -> Text:
        return Text.load(self.store / self.name)


def make_model(folder: Path, shape: Shape = LARGE) -> Model:
    """A random MoE with SmolLM2's tokenizer; made on first use, the large one in a minute."""
    model = Model(folder / "model.gguf", folder / "store", "moe")
    if not model.gguf.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / "partial.gguf"
        random_moe("qwen3_moe", shape, Codecs(), gguf_file=partial)
        partial.rename(model.gguf)
    model.store.mkdir(exist_ok=True)
    if not (model.store / model.name).exists():
        convert(model.gguf, model.store / model.name, write_tokenizer=lambda _, target: write_smollm2(target))
    write_smollm2(model.store / model.name)  # the template may have changed since
    return model


@dataclass(frozen=True)
class Server:
    """One that answers. `bias` is towards words that come back as the same tokens."""

    name: str
    client: httpx.Client
    model: str
    bias: Mapping[str, int]

    def ask(self, workload: Workload, asks: Sequence[Ask]) -> list[Heard]:
        """Answers to requests that are made at once."""
        return ask_all(self.client, INTERFACES[workload.interface], self.model, asks, self.bias)

    def read(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """Have a prompt read: how many of its tokens were known to be read, and after how many seconds; the last for
        all of them and the first token of an answer."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "stream": True, "temperature": 0}
        began, read = time.perf_counter(), []
        with self.client.stream("POST", "/v1/completions", json=body, timeout=TIMEOUT) as response:
            for line in response.iter_lines():
                seconds = time.perf_counter() - began
                if line.startswith(": reading ") and 0 < int(line.split()[2]) < len(ids):
                    read.append((int(line.split()[2]), seconds))
                elif line.startswith("data: {"):
                    return [*read, (len(ids), seconds)]
        raise RuntimeError("a prompt was not answered")


@contextmanager
def serve(model: Model, context: int, threads: int, llama: LlamaCpp | None, folder: Path) -> Iterator[list[Server]]:
    """Ours, and llama-server where there is one; both have answered once."""
    bias = sayable(model.text)
    with ExitStack() as stack:
        front = start_front(model.store, folder, script=Path(engine.front.__path__[0]) / "__main__.py")
        stack.callback(front.stop)
        settings: dict[str, Any] = {"context": context, "kv_tokens": ROOM * context, "threads": threads}
        state = front.control("load", model=model.name, **settings)
        if "error" in state:
            raise SystemExit(str(state["error"]))
        urls = {OURS: front.url}
        if llama is not None:
            urls[THEIRS] = stack.enter_context(llama.serve(model.gguf, folder, TEMPLATE, ROOM * context, threads))
        clients = {name: stack.enter_context(httpx.Client(base_url=url)) for name, url in urls.items()}
        yield [Server(name, client, model.name, bias) for name, client in clients.items()]
