"""What the tests of Triton's kernels do where there is no GPU: interpret them in a process of its own, and compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from engine.device.triton_compile import compile_triton
from engine.program.device.triton_launch import FUNCTIONS, TYPES, launch_signature

# Both sides keep binary16 and compute in binary32: sums have another order, and exp and softplus are the chip's.
# Measured, interpreted: up to 1.1e-6 of the largest value.
TOLERANCE = 4e-6
TARGETS = (80, 86, 89, 90, 120)


def interpreted(module: str, *cases: str) -> Mapping[str, Any]:
    """The JSON object that a module of this folder prints about these cases, or about all that it has."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", f"tests.gpu.{module}", *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_compiled(
    name: str, parameters: Sequence[str], constants: Mapping[str, int], target: int, most_shared: int = 48 << 10
) -> None:
    """A kernel compiles for a target, and its blocks share at most so many bytes: more than 48 KiB is asked for."""
    types = {parameter: TYPES[parameter] for parameter in parameters}
    compiled = compile_triton(FUNCTIONS[name], types, constants, target)
    assert compiled.name == name
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.shared <= most_shared
    assert len(launch_signature(name, types).parameters) == len(parameters) + 2
