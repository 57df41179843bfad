"""What the makers of operations share: where things are, and how a kernel is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.base.errors import UnsupportedError
from engine.device.driver import Driver, Grid, Kernel, Stream
from engine.program.device.activations import Activations
from engine.program.device.buffers import DeviceBuffers, Rows
from engine.program.device.mixers import DeviceMixers
from engine.program.device.step_data import Extent
from engine.program.device.weights import DeviceWeights
from engine.program.ir import Attr, Op

Issue = Callable[[Extent], None]
"""Issues the launches of one operation."""

THREADS = 256  # of a block where threads do not know each other


def cannot_run(op: Op, why: str) -> UnsupportedError:
    """For an operation that has no kernel in this form."""
    return UnsupportedError(
        f"The device cannot run the operation {op.kind} of layer {op.layer}: {why}.",
        "Run the model on the processor: --device cpu",
    )


@dataclass(frozen=True)
class Context:
    """A program on its device. All launches but those of experts go to one stream."""

    driver: Driver
    stream: Stream
    buffers: DeviceBuffers
    weights: DeviceWeights
    activations: Activations
    mixers: DeviceMixers
    routers: Sequence[int]  # the operations that route, one a MoE layer

    def launcher(self, name: str) -> Callable[..., None]:
        """`launch(grid, threads, *args)` of a kernel, which is compiled now."""
        kernel: Kernel = self.driver.kernel(name)

        def launch(grid: Grid, threads: int, *args: int | float) -> None:
            if 0 not in grid:
                self.driver.launch(self.stream, kernel, grid, threads, args)

        return launch


@dataclass(frozen=True)
class OpReader:
    """One operation, with errors that name it."""

    context: Context
    index: int
    op: Op

    def read(self, i: int) -> Rows:
        """Input i."""
        return self.context.buffers[self.op.reads[i]]

    def write(self, i: int) -> Rows:
        """Output i."""
        return self.context.buffers[self.op.writes[i]]

    def integer(self, name: str) -> int:
        """An attribute that is a count, or yes or no."""
        value = self._attribute(name)
        self.require(isinstance(value, int), f"the attribute {name} must be a count")
        return int(value)

    def real(self, name: str) -> float:
        """An attribute that is a number."""
        value = self._attribute(name)
        self.require(isinstance(value, int | float), f"the attribute {name} must be a number")
        return float(value)

    def choice(self, name: str, numbers: Mapping[str, int]) -> int:
        """The number by which kernels know a word."""
        value = self._attribute(name)
        self.require(value in numbers, f"the {name} {value} is unknown")
        return numbers[str(value)]

    def require(self, condition: bool, why: str) -> None:
        """Raises UnsupportedError unless the condition holds."""
        if not condition:
            raise cannot_run(self.op, why)

    def _attribute(self, name: str) -> Attr:
        self.require(name in self.op.attrs, f"the attribute {name} is missing")
        return self.op.attrs[name]


def columns_grid(values: int, rows: int) -> Grid:
    """A thread a value, a row of the grid a row."""
    return (-(-values // THREADS), rows, 1)
