"""Small routing traces for tests. They are made up, so nothing about real models follows from them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.experts.trace import SYNTHETIC, Trace, TraceHeader, TraceWriter

RECORDED_TRACE = "FREETOKEN_TEST_TRACE"
"""The variable that names a recorded trace of Qwen3.6-35B-A3B; tests that need it skip without."""


def recorded_trace() -> Path:
    """The path of the recorded trace, or a skipped test."""
    path = os.environ.get(RECORDED_TRACE, "")
    if not path:
        pytest.skip(f"{RECORDED_TRACE} names no recorded trace")
    return Path(path)


def drifting(
    tokens: int, layers: int = 3, experts: int = 16, top_k: int = 2, stay: float = 0.5, seed: int = 0
) -> NDArray[np.int32]:
    """Each layer keeps each expert of the token before with probability `stay`, and takes others at random."""
    chance = random.Random(seed)
    rows = [chance.sample(range(experts), top_k) for _ in range(layers)]
    out = []
    for _ in range(tokens):
        for layer, row in enumerate(rows):
            kept = [expert for expert in row if chance.random() < stay]
            others = [expert for expert in range(experts) if expert not in kept]
            rows[layer] = kept + chance.sample(others, top_k - len(kept))
        out.append([list(row) for row in rows])
    return np.array(out, np.int32)


def trace_of(
    experts: NDArray[np.int32], pool: int, phases: str = "", requests: str = "", record_bytes: int = 0
) -> Trace:
    """A trace of these rows. A letter a token: `p` for prefill, else decode; and its request."""
    tokens, layers, top_k = experts.shape
    names = requests or "a" * tokens
    known = tuple(dict.fromkeys(names))
    return Trace(
        TraceHeader("made up", layers, pool, top_k, SYNTHETIC, record_bytes),
        experts,
        np.array([phase != "p" for phase in phases or "d" * tokens], bool),
        np.array([known.index(name) for name in names], np.int32),
        known,
    )


def write(path: Path, trace: Trace) -> Path:
    """The trace as a file."""
    with TraceWriter(path, trace.header) as writer:
        for rows, decode, request in zip(trace.experts, trace.decode, trace.request, strict=True):
            writer.token(trace.requests[request], "decode" if decode else "prefill", rows)
    return path
