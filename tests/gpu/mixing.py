"""One mixer of a program, run by itself."""

from __future__ import annotations

from typing import Any

from engine.device.driver import Driver
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixers import DeviceMixers
from engine.program.device.step_data import StepData, StepMode
from engine.program.executor import Batch
from engine.program.ir import Program


def mix(
    driver: Driver, program: Program, buffers: DeviceBuffers, mixers: DeviceMixers, batch: Batch, room: int, out: str
) -> Any:
    """Operation 1 of a program in a step of up to `room` tokens: the rows of buffer `out`."""
    data = StepData(driver, (), max_tokens=room, chunk_rows=room, routed=(0, 0), mixer_bytes=mixers.step_bytes)
    layout, mode = data.layout(room), StepMode()
    stream = driver.stream("main")
    mixers.begin(batch, room, data.write(layout, batch, None))
    data.issue(stream, layout, mode)
    mixers.issue(stream, 1, program.ops[1], data.extent(layout, mode))
    driver.synchronise(stream)
    found = buffers.read(out, len(batch.tokens))
    data.free()
    return found
