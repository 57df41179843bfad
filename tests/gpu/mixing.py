"""Programs of one mixer, and a mixer of a program run by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine.device.driver import Driver, Stream
from engine.files.codecs import align
from engine.files.ftw.opening import Tensor
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixers import DeviceMixers
from engine.program.device.step_data import Extent, StepData, StepMode
from engine.program.executor import Batch
from engine.program.ir import Buffer, Cache, Op, Program, State

WIDTH = 16  # of the embedding and of the logits, which stand for nothing


def program_with(
    op: Op, widths: Mapping[str, int], caches: Sequence[Cache] = (), states: Sequence[State] = ()
) -> Program:
    """A program whose operation 1 is `op`, over buffers of these widths."""
    buffers = {"embedded": Buffer(WIDTH), **{name: Buffer(width) for name, width in widths.items()}}
    buffers["logits"] = Buffer(WIDTH, domain="row")
    embed = Op("embed", (), ("embedded",), ("embed",), {"scale": 1.0})
    ops = (embed, op, Op("select", ("embedded",), ("logits",)))
    return Program(buffers, ops, tuple(caches), (), "logits", WIDTH, "embedded", (2,), tuple(states))


def weights_with(lengths: Mapping[str, int], random: np.random.Generator) -> dict[str, Tensor]:
    """The weights of such a program: vectors of these lengths, of normal values."""
    weights = {"embed": Tensor("f32", WIDTH, WIDTH, memoryview(bytes(4 * WIDTH * WIDTH)))}
    for name, length in lengths.items():
        values = np.zeros(align(length, 16), np.float32)
        values[:length] = random.normal(size=length)
        weights[name] = Tensor("f32", 1, length, memoryview(values).cast("B").toreadonly(), vector=True)
    return weights


@contextmanager
def prepared(driver: Driver, mixers: DeviceMixers, batch: Batch, room: int) -> Iterator[tuple[Stream, Extent]]:
    """A step of up to `room` tokens whose data is on its way to the device."""
    data = StepData(driver, (), max_tokens=room, chunk_rows=room, routed=(0, 0), mixer_bytes=mixers.step_bytes)
    layout, mode = data.layout(room), StepMode()
    stream = driver.stream("main")
    mixers.begin(batch, room, data.write(layout, batch, None))
    data.issue(stream, layout, mode)
    try:
        yield stream, data.extent(layout, mode)
    finally:
        data.free()


def mix(
    driver: Driver, program: Program, buffers: DeviceBuffers, mixers: DeviceMixers, batch: Batch, room: int, out: str
) -> Any:
    """Operation 1 of a program in a step of up to `room` tokens: the rows of buffer `out`."""
    with prepared(driver, mixers, batch, room) as (stream, extent):
        mixers.issue(stream, 1, program.ops[1], extent)
        driver.synchronise(stream)
        return buffers.read(out, len(batch.tokens))
