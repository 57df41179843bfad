"""Recurrent operations of published shapes beside a loop over as many bytes.

`python -m tests.bench.recurrences`: for each shape as many operations, with weights of their own, as fill `--bytes`
with their states, decoded one token at a time, in turns with a loop that reads and writes as many values as the states
have and reads as many as the weights have, on equally many threads. A prompt's rate is that of one operation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from engine.files.ftw.opening import Tensor
from engine.memory.blocks import ContextRoom
from engine.program.ir import Program, State
from engine.program.native import NativeExecutor
from tests.bench.beside import WARM_UPS, Rates, beside
from tests.unit.recurrence_rig import Case, Rig, Run, advance, conv, delta_rule, ssm, tokens_of, vector

PROMPT = 256  # tokens


def delta(heads: int, key_heads: int, dim: int, channelwise: bool) -> Case:
    """A delta net's operation, of heads of `dim` times `dim`."""
    keys, values = key_heads * dim, heads * dim
    reads = ((keys, 1.0), (keys, 0.1), (values, 1.0), (values if channelwise else heads, 0.1), (heads, 1.0))
    attrs = {"heads": heads, "key_heads": key_heads, "k_dim": dim, "v_dim": dim, "scale": dim**-0.5}
    return Case("delta_rule", reads, values, delta_rule, attrs, state=heads * dim * dim)


def space(heads: int, head_dim: int, groups: int, state_dim: int, by_channel: bool) -> Case:
    """A state space's operation."""
    width = heads * head_dim
    reads = ((width, 1.0), (heads, 1.0), (groups * state_dim, 1.0), (groups * state_dim, 1.0))
    attrs = {
        "heads": heads,
        "head_dim": head_dim,
        "groups": groups,
        "state_dim": state_dim,
        "dt_min": 0.0,
        "dt_max": 0.0,
    }
    weights = (vector(heads * state_dim if by_channel else heads), vector(heads), vector(heads))
    return Case("ssm", reads, width, ssm, attrs, weights, width * state_dim)


def convolution(channels: int, kernel: int) -> Case:
    """A convolution's operation, with a bias and silu."""
    attrs = {"channels": channels, "kernel": kernel, "activation": "silu"}
    weights = (vector(channels * kernel), vector(channels))
    return Case("conv", ((channels, 1.0),), channels, conv, attrs, weights, channels * (kernel - 1))


SHAPES = {
    "delta net, a decay a head (32 x 128 x 128)": delta(32, 16, 128, False),
    "delta net, a decay a channel (32 x 128 x 128)": delta(32, 32, 128, True),
    "Mamba-2 (128 heads x 64 x 128)": space(128, 64, 1, 128, False),
    "Mamba-2, eight groups (64 heads x 64 x 128)": space(64, 64, 8, 128, False),
    "Mamba-1 (8192 x 16)": space(8192, 1, 1, 16, True),
    "convolution (8192 channels, 4 inputs)": convolution(8192, 4),
}


def repeated(rig: Rig, times: int) -> tuple[Program, dict[str, Tensor]]:
    """The operation so many times, each with a state and weights of its own, and their tensors."""
    program, tensors = rig.program(), rig.tensors()
    embed, op, select = program.ops
    copies = []
    for i in range(times):
        names = tuple(f"{name}.{i}" if name else "" for name in op.weights)
        copies.append(replace(op, weights=names, attrs={**op.attrs, "state": i}))
        for name, own in zip(op.weights, names, strict=True):
            if name:
                tensors[own] = replace(tensors[name], data=memoryview(bytes(tensors[name].data)))
    states = tuple(State(program.states[0].values) for _ in copies)
    return replace(program, ops=(embed, *copies, select), layer_ends=(1 + times,), states=states), tensors


def loop_over(states: int, weights: int, threads: int) -> Callable[[], None]:
    """A call that multiplies so many f32 values in place and reads so many others, on so many threads."""
    written = np.array_split(np.ones(states, np.float32), threads)
    read = np.array_split(np.ones(weights, np.float32), threads)
    pool = ThreadPoolExecutor(threads)
    factor = np.float32(1.0)

    def work(part: int) -> None:
        np.multiply(written[part], factor, out=written[part])
        np.max(read[part], initial=0.0)

    def once() -> None:
        list(pool.map(work, range(threads)))

    return once


def seconds(call: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call, by the clock."""
    start = clock()
    call()
    return clock() - start


def decode(
    case: Case, total_bytes: int, threads: int, isa: str, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Rates:
    """Rates of decoding, in turns with the loop."""
    times = max(1, total_bytes // (4 * case.state))
    rig = Rig(case)
    program, tensors = repeated(rig, times)
    room = ContextRoom(0, 0, 1)
    executor = NativeExecutor(program, tensors, (), room=room, threads=threads, isa=isa, max_tokens=1)
    run = Run(tokens_of(WARM_UPS + rounds), 0)
    weights = sum(len(values) for values in case.weights if values is not None)
    loop = loop_over(times * case.state, times * weights, threads)
    return beside(
        lambda: seconds(loop, clock),
        lambda: seconds(lambda: advance(executor, [(run, 1)]), clock),
        moved=4 * times * (2 * case.state + weights),
        rounds=rounds,
    )


def prompt(case: Case, threads: int, isa: str, rounds: int) -> float:
    """Microseconds that one operation takes for a token of a prompt, the best of some rounds."""
    rig = Rig(case)
    executor = rig.executor(threads=threads, isa=isa, max_tokens=PROMPT)
    taken = [seconds(lambda: advance(executor, [(Run(tokens_of(PROMPT), 0), PROMPT)])) for _ in range(rounds)]
    return min(taken) / PROMPT * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=256 * 2**20, help="of states that are decoded through")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="", help="instruction set, the fastest by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--processor-time", action="store_true", help="measure decoding so, on one thread: for a machine that is busy"
    )
    options = parser.parse_args(arguments)
    clock = time.process_time if options.processor_time else time.perf_counter
    if options.processor_time and options.threads != 1:
        parser.error("--processor-time needs --threads 1: waiting threads take processor time")
    print("| operation | GB/s | loop | loop / ours | range | prompt, us a token |\n|---|---|---|---|---|---|")
    for name, case in SHAPES.items():
        rates = decode(case, options.bytes, options.threads, options.isa, options.rounds, clock)
        token = prompt(case, options.threads, options.isa, 5)
        print(
            f"| {name} | {rates.ours:.1f} | {rates.loop:.1f} | {rates.ratio:.2f} | {rates.low:.2f} to {rates.high:.2f} "
            f"| {token:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
