"""What the front costs: processor time for each token that it streams, and the time before a long prompt is read.

    python -m tests.bench.front

A worker without a model says tokens as fast as it is asked to, so what is counted is the front alone: tokens made into
text, looked through for calls, written as events. It is set beside a decode step of the random MoE, timed in turns with
it. Then a conversation of 20,000 tokens goes on by one message after the other: the time from a request to the worker's
first word, before which the prompt has been rendered, made into tokens and sent.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx

import engine.front
from tests.bench.agents.servers import Model, make_model
from tests.bench.agents.tools import coding
from tests.bench.agents.words import text
from tests.bench.ours import Ours
from tests.bench.shapes import Shape
from tests.server.running_front import RunningFront, start_front
from tests.turns.served import write_bytes_tokenizer

LONG = 20_000  # tokens of a prompt
SPEAKER = "brisk"  # of tests/server/fake_worker.py
SMALL = Shape(layers=1, hidden=256, heads=4, kv_heads=1, experts=8, top_k=2, intermediate=256, context=2 * LONG)
"""Of the model that reads the long prompt, which is waited for once."""
TOKENS = 3000  # streamed by a request
STEP_SHARE, BEFORE_READING = 0.03, 0.050  # asked: of a decode step, and seconds
TOOLS = list(coding("the project"))
USER: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "go on"},)
STREAMS: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": TOKENS, "tools": TOOLS},
    "/v1/completions": {"prompt": "go on", "max_tokens": TOKENS},
    "/v1/responses": {"input": "go on", "max_output_tokens": TOKENS},
    "/v1/messages": {
        "messages": USER,
        "max_tokens": TOKENS,
        "tools": [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS],
    },
    "/api/chat": {"messages": USER, "options": {"num_predict": TOKENS}},
}


def processor_seconds(process: int) -> float:
    """What a process has used so far, of its own and for it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream(front: RunningFront, model: str, path: str, body: Mapping[str, Any]) -> float:
    """Read an answer to its end; seconds to the first of it."""
    first = 0.0
    began = time.perf_counter()
    content = {"model": model, "stream": True, **body}
    with httpx.stream("POST", front.url + path, json=content, timeout=600) as response:
        for _ in response.iter_raw():
            first = first or time.perf_counter() - began
        response.raise_for_status()
    return first


def per_token(front: RunningFront, path: str) -> float:
    """Processor seconds of the front for a token that it streams over an interface, its request included."""
    before = processor_seconds(front.process.pid)
    stream(front, SPEAKER, path, STREAMS[path])
    return (processor_seconds(front.process.pid) - before) / TOKENS


def before_reading(front: RunningFront, model: Model, turns: int) -> tuple[list[float], float]:
    """Of every turn of a long conversation but the first: seconds to the worker's first word; the processor's, on the
    average of them, which is counted in hundredths."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": text("code", Random(0), LONG, model.text.encode)}]
    waited, before = [], 0.0
    for turn in range(turns + 1):
        messages.append({"role": "user", "content": f"Question {turn}: what does this do?"})
        body = {"messages": messages, "max_tokens": 1, "tools": TOOLS}
        waited.append(stream(front, model.name, "/v1/chat/completions", body))
        before = before or processor_seconds(front.process.pid)
        messages.append({"role": "assistant", "content": f"It is number {turn}."})
    return waited[1:], (processor_seconds(front.process.pid) - before) / turns


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"), help="where the model is kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    model = make_model(arguments.models / "qwen3moe-16-q4_0-64k")
    ours = Ours(model.store / model.name, arguments.threads, context=1024)
    with tempfile.TemporaryDirectory(prefix="ft-") as runtime:
        folder = Path(runtime) / "store" / SPEAKER
        folder.mkdir(parents=True)
        (folder / "ftw.json").write_text("{}")
        write_bytes_tokenizer(folder)
        front = start_front(folder.parent, Path(runtime))
        steps: list[float] = []
        costs: dict[str, list[float]] = {path: [] for path in STREAMS}
        for _ in range(arguments.rounds):
            for path, each in costs.items():
                steps.append(1 / ours.decode_rate(64))
                each.append(per_token(front, path))
        front.stop()
        listener = make_model(arguments.models / "qwen3moe-1-q4_0-small", SMALL)
        front = start_front(listener.store, Path(runtime), script=Path(engine.front.__path__[0]) / "__main__.py")
        waited, worked = before_reading(front, listener, arguments.rounds)
        front.stop()
    step = median(steps)
    print(f"| interface | µs a token | of a decode step of {1e3 * step:.2f} ms |\n|---|---|---|")
    for path, each in costs.items():
        print(f"| {path} | {1e6 * median(each):.0f} | {median(each) / step:.1%} (asked: {STEP_SHARE:.0%}) |")
    print(
        f"\nfrom a request of {LONG:,} tokens to the worker's first word: {1e3 * median(waited):.0f} ms"
        f" (asked: {1e3 * BEFORE_READING:.0f}), of which the front computes {1e3 * worked:.0f}"
    )


if __name__ == "__main__":
    main()
