"""One mixer of a program, run by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.device.driver import Driver, Stream
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixers import DeviceMixers
from engine.program.device.step_data import Extent, StepData, StepMode
from engine.program.executor import Batch
from engine.program.ir import Program


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
