"""The routed experts of a layer on a device and the CPU at once: the launches of one MoE layer, in their order.

    main   pack x, plan        stage, request              hits     (join side)   (wait for the CPU)   merge
    link              (plan)                     fill          stamp
    side              (plan)             stamp          (fill)       fills
    CPU                                          its pairs, from the mailbox

The CPU begins first: it is asked before the first byte is filled. With host functions in place of memory operations a
stream `cpu` calls one where the CPU computes, and main joins it instead of waiting for a word. A layer whose bank has
no slots has neither fill nor products. Stamps tell how long fills took (`branch_stamps.py`): nothing waits for them
but the merge, which the products of the fills hold up for longer.

A layer of a long prompt has another form, in which the CPU has no part: `prefill_stream.py` brings all its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import ON_THE_CPU, FreetokenError, UnsupportedError
from engine.device.driver import Driver, Event, Grid, Stream
from engine.device.gated_units import GLU_KINDS
from engine.experts.bank_on_device import BankOnDevice
from engine.experts.branch_stamps import FillStamps
from engine.experts.cpu_worker import CpuWorker
from engine.experts.prefill import PrefillPolicy
from engine.experts.prefill_stream import LayerLaunch, PrefillStream
from engine.experts.slot_products import (
    FILLS,
    HITS,
    Activation,
    PairRows,
    ProductRoom,
    RecordShape,
    Rows,
    SlotProducts,
)

Signals = Literal["memory", "host"]

VALUE_THREADS = 256
PREFILL = PrefillPolicy()


@dataclass(frozen=True)
class MoeBuffers:
    """Device addresses of what one MoE layer reads and writes. Strides are in values, ids and weights lie dense."""

    x: int  # f32 [bucket][x_stride]
    x_stride: int
    ids: int  # i32 [bucket][top_k]
    weights: int  # f32 [bucket][top_k]
    rows: int  # i32, the live tokens: the first so many
    y: int  # f32 [bucket][y_stride]
    y_stride: int


class ExpertsOp(Protocol):
    """An operation `experts` of a program: `attrs` has its layer, activation, alpha and limit."""

    @property
    def attrs(self) -> Mapping[str, int | float | str | bool]: ...


class LayerExperts(Protocol):
    """What an executor calls."""

    def launch(self, layer: int, bucket: int, buffers: MoeBuffers) -> None:
        """Issues one MoE layer for up to `bucket` tokens: on the main stream, and beside it on others.

        They have joined the main stream again when it returns, so it may be captured. What is issued depends on which
        banks have slots: when `shape` changes, capture again.
        """

    @property
    def shape(self) -> tuple[bool, ...]:
        """For each bank whether it has slots: what is issued depends on it and on nothing else that may change."""

    def begin_step(self) -> None:
        """Wakes the worker; before anything of a step runs. BusyError if it is still stuck in an older step."""

    def plan_step(self, tokens: int, more: int) -> None:
        """Decides how experts get to a step of `tokens` tokens, after which one of `more` is due; before any launch.

        0 tokens: one that is captured, or short. Where it never was called, nothing is streamed.
        """

    def end_step(self) -> None:
        """Lets the worker sleep; when the device is done with a step. FreetokenError if the worker failed in it."""

    def step_done(self) -> None:
        """After `end_step`, where all went well."""

    def settle(self) -> None:
        """Before anybody looks at the caches between two steps, or changes them."""

    def forget(self) -> None:
        """After a step that failed, before the caches are cleared."""

    def close(self) -> None:
        """Ends the worker and frees all memory; no launch may be under way."""


@dataclass(frozen=True)
class BranchSeconds:
    """How long fills took, f64 [MoE layers], and the CPU's computing, all layers together.

    A layer that had nothing to fill has the seconds of a launch.
    """

    fills: NDArray[np.float64]
    host: float


@dataclass(frozen=True)
class _Layer:
    """A MoE layer: its bank, its place among the bank's layers, and what stands between its experts' matrices."""

    bank: BankOnDevice
    place: int
    activation: Activation
    products: SlotProducts | None  # None: the bank never has slots


class HybridExperts:
    """Fulfils `LayerExperts`. Owns the worker, the mailbox and all buffers between its launches."""

    def __init__(
        self,
        driver: Driver,
        ops: Sequence[ExpertsOp],
        banks: Sequence[BankOnDevice],
        *,
        top_k: int,
        max_tokens: int,
        main: Stream,
        threads: int | None = None,
        isa: str = "",
        patience: float = 30.0,
        signals: Signals = "memory",
        prefill: PrefillPolicy = PREFILL,
    ) -> None:
        """`ops` are the program's operations of kind "experts"; the rest of a step runs on the stream `main`.

        Raises UnsupportedError for experts that the CPU cannot run, NoRoomError, CannotPinError for the mailbox.
        """
        shapes = [RecordShape.of(bank.bank) for bank in banks]
        self._hidden = shapes[0].hidden
        if any(shape.hidden != self._hidden for shape in shapes):
            raise UnsupportedError("A device runs experts of one width alone, and this model has several.", ON_THE_CPU)
        activations = _activations(ops)
        self._driver = driver
        self._top_k = top_k
        self._signals = signals
        self._banks = tuple(banks)
        self._main, self._link, self._side = main, driver.stream("link"), driver.stream("side")
        self._cpu = driver.stream("cpu") if signals == "host" else main
        self._stage, self._merge = driver.kernel("stage"), driver.kernel("merge")
        cached = [bank for bank in banks if bank.slots.capacity > 0]
        with ExitStack() as made:
            self._room: ProductRoom | None = None
            if cached:
                self._room = ProductRoom(
                    driver,
                    [RecordShape.of(bank.bank) for bank in cached],
                    experts=max(bank.bank.experts_per_layer for bank in cached),
                    top_k=top_k,
                    max_tokens=max_tokens,
                )
                made.callback(self._room.free)
            self.stream = PrefillStream(driver, cached, main=main, link=self._link, top_k=top_k, policy=prefill)
            made.callback(self.stream.free)
            self._is_streaming = False
            self._layers = self._find_layers(activations)
            self.worker = CpuWorker(
                driver,
                [bank.bank for bank in banks],
                activations,
                max_tokens=max_tokens,
                top_k=top_k,
                hidden=self._hidden,
                threads=threads,
                isa=isa,
                patience=patience,
            )
            made.callback(self.worker.close)
            self._stamps = FillStamps(driver, len(activations))
            made.callback(self._stamps.close)
            self._computed = 0.0
            strides = (self.worker.row_stride, self._room.outputs.stride if self._room is not None else None)
            assert None in strides or len(set(strides)) == 1, f"merge reads rows of one stride, and not of {strides}"
            self._made = made.pop_all()

    def _find_layers(self, activations: Sequence[Activation]) -> Mapping[int, _Layer]:
        layers = {}
        for bank in self._banks:
            products = None
            if self._room is not None and bank.slots.capacity > 0:
                products = SlotProducts(self._driver, bank.bank, bank.slots.address, bank.slots.stride, self._room)
            for place, layer in enumerate(bank.bank.layers):
                layers[layer] = _Layer(bank, place, activations[layer], products)
        return layers

    # --- a layer

    def launch(self, layer: int, bucket: int, buffers: MoeBuffers) -> None:
        at = self._layers[layer]
        cache, link = at.bank.cache, self._link
        pairs = PairRows(buffers.ids, cache.target, buffers.rows, bucket, self._top_k)
        x = Rows(buffers.x, 4 * buffers.x_stride)
        streamed = self.stream.layer(layer) if self._is_streaming else None
        if streamed is not None:
            self._launch_streamed(at, streamed, x, pairs, buffers)
            return
        products = at.products if cache.slots > 0 else None
        if products is not None:
            x = products.pack_input(self._main, x, pairs)
        cache.launch_plan(self._main, at.place, buffers.ids, buffers.rows, bucket)
        planned = self._driver.record(self._main)
        answered = self._ask(layer, pairs, buffers)
        if products is not None:
            self._driver.wait_event(link, planned)
            cache.launch_fill(link, at.place, at.bank.shards, at.bank.records_per_shard)
            filled = self._driver.record(link)
            self._stamps.filled(link, layer)
            products.group(self._main, HITS, pairs)
            products.compute(self._main, HITS, x, pairs, at.activation)
            self._driver.wait_event(self._side, planned)
            self._stamps.planned(self._side, layer)
            products.group(self._side, FILLS, pairs)
            self._driver.wait_event(self._side, filled)
            products.compute(self._side, FILLS, x, pairs, at.activation)
            self._driver.wait_event(self._main, self._driver.record(self._side))
            self._driver.wait_event(self._main, self._driver.record(link))
        if answered is not None:
            self._driver.wait_event(self._main, answered)
        else:
            self._driver.wait_value(self._main, self.worker.done, layer + 1)
        self._launch_merge(pairs, buffers)

    def _launch_streamed(self, at: _Layer, layer: LayerLaunch, x: Rows, pairs: PairRows, buffers: MoeBuffers) -> None:
        products, stream, main = at.products, self.stream, self._main
        assert products is not None, "layers without slots are not streamed"
        x = products.pack_input(main, x, pairs)
        stream.place(layer, 0, pairs)
        if layer.has_residents:
            products.group(main, HITS, pairs)
            products.compute(main, HITS, x, pairs, at.activation)
        for part in range(layer.parts):
            if part > 0:
                stream.place(layer, part, pairs)
            products.group(main, FILLS, pairs)
            stream.wait(layer, part)
            products.compute(main, FILLS, x, pairs, at.activation)
            stream.read(layer, part)
        self._launch_merge(pairs, buffers)

    def _ask(self, layer: int, pairs: PairRows, buffers: MoeBuffers) -> Event | None:
        """Hand the CPU its share. The event that stands for the answer, unless that is a word in the mailbox."""
        worker = self.worker
        shape = (pairs.rows, self._top_k, self._hidden)
        args = (buffers.x, buffers.x_stride, pairs.ids, pairs.target, *shape)
        grid = _values_grid(self._hidden, pairs.bucket)
        box = (worker.header, worker.ids, worker.inputs)
        self._driver.launch(self._main, self._stage, grid, VALUE_THREADS, (*args, *box))
        if self._signals == "memory":
            self._driver.write_value(self._main, worker.request, layer + 1)
            return None
        self._driver.wait_event(self._cpu, self._driver.record(self._main))
        self._driver.host_function(self._cpu, worker.function, worker.argument(layer))
        return self._driver.record(self._cpu)

    def _launch_merge(self, pairs: PairRows, buffers: MoeBuffers) -> None:
        outputs = self._room.outputs.address if self._room is not None else self.worker.outputs
        rows = (outputs, self.worker.outputs, self.worker.row_stride, pairs.target, buffers.weights, pairs.rows)
        args = (buffers.x, buffers.x_stride, *rows, self._top_k, self._hidden, buffers.y, buffers.y_stride)
        grid = _values_grid(self._hidden, pairs.bucket)
        self._driver.launch(self._main, self._merge, grid, VALUE_THREADS, args)

    # --- around steps

    @property
    def shape(self) -> tuple[bool, ...]:
        return tuple(bank.cache.slots > 0 for bank in self._banks)

    def begin_step(self) -> None:
        self.worker.begin_step()

    def plan_step(self, tokens: int, more: int) -> None:
        self._is_streaming = self.stream.begin_step(tokens, more)

    def end_step(self) -> None:
        self.worker.end_step()

    def step_done(self) -> None:
        if self._is_streaming:
            self.stream.end_step()

    def settle(self) -> None:
        self.stream.settle()

    def forget(self) -> None:
        self._is_streaming = False
        self.stream.forget()
        with suppress(FreetokenError):  # what failed once may fail again; no plan may still write tables after this
            self._driver.synchronise(self._main)

    def take_seconds(self) -> BranchSeconds:
        """Of both branches since the last call; between two steps."""
        computed = self.worker.counters()["seconds"]
        host, self._computed = computed - self._computed, computed
        return BranchSeconds(self._stamps.take(), host)

    @property
    def is_streaming(self) -> bool:
        """Whether the last step, or the one under way, streams whole layers."""
        return self._is_streaming

    @property
    def size(self) -> int:
        """Bytes of the device, beside slots and caches."""
        return self.stream.size + (self._room.size if self._room is not None else 0)

    def close(self) -> None:
        self._made.close()


def _activations(ops: Sequence[ExpertsOp]) -> list[Activation]:
    """Of every MoE layer, by its number. Raises UnsupportedError for one that no kernel knows."""
    by_layer = {}
    for op in ops:
        name = str(op.attrs["activation"])
        if name not in GLU_KINDS:
            raise UnsupportedError(f"The device does not know the experts' activation {name}.", ON_THE_CPU)
        by_layer[int(op.attrs["layer"])] = Activation(name, float(op.attrs["alpha"]), float(op.attrs["limit"]))
    assert sorted(by_layer) == list(range(len(by_layer))), "MoE layers are numbered from 0"
    return [by_layer[layer] for layer in range(len(by_layer))]


def _values_grid(values: int, rows: int) -> Grid:
    return (-(-values // VALUE_THREADS), rows, 1)
