"""Prompts through layers of experts on the simulated device: their bits, and what is issued for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.device.graph import Node
from engine.device.sim import SimDriver
from engine.device.virtual_time import Seconds
from engine.experts.arena import SlotArena
from engine.experts.bank_on_device import BankOnDevice
from engine.experts.cache import ExpertCache
from engine.experts.hybrid import HybridExperts, MoeBuffers
from engine.experts.prefill import PrefillPolicy
from engine.experts.split import Split
from engine.files.ftw.manifest import RECORD_ALIGNMENT, Field, Shape, record_size
from engine.files.ftw.opening import Bank
from tests.same_bits import assert_same_bits
from tests.unit.hybrid_rig import UNTOUCHED, BankKind, Pair, Rows
from tests.unit.native_model import TOP_K

LONG = 40  # tokens that stream whole layers of 8 experts
HIDDEN = 32
TWO_LAYERS = PrefillPolicy()
ALL_FILL = Split.all_fill()


class Ring(PrefillPolicy):
    """A ring of at most so many slots (None: a layer a buffer), in one buffer or two."""

    def __init__(self, slots: int | None = None, buffers: int = 2) -> None:
        self.slots, self.buffers = slots, buffers

    def most_slots(self, experts: int) -> int:
        return super().most_slots(experts) if self.slots is None else self.slots


class Prompt:
    """Steps of all layers of a model, which need not wait for each other, on a device and by itself."""

    def __init__(
        self, kinds: Sequence[BankKind], slots: Sequence[int], prefill: PrefillPolicy = TWO_LAYERS, **settings: Any
    ) -> None:
        split = settings.pop("split", ALL_FILL)
        self.pair = Pair(kinds, slots, split, max_tokens=settings.pop("tokens", LONG), prefill=prefill, **settings)
        self.rig, self.reference = self.pair.rig, self.pair.reference
        self.layers = self.reference.layers
        self._buffers = [self._allocate() for _ in range(self.layers)]

    @property
    def stream(self) -> Any:
        return self.rig.experts.stream

    def step(self, tokens: int, more: int = 0) -> None:
        """All layers, each with rows of its own, have the bits of the native operation."""
        rng = self.pair.rng
        rows = [self.reference.rows(layer, tokens, rng) for layer in range(self.layers)]
        self.issue(rows, more)
        for made, buffers in zip(rows, self._buffers, strict=True):
            y = np.zeros((tokens, buffers.y_stride), np.float32)
            self.rig.driver.download(buffers.y, y)
            assert_same_bits(np.ascontiguousarray(y[:, : self.rig.model.hidden]), made.y)
            assert (y[:, self.rig.model.hidden :] == UNTOUCHED).all(), "something was written beside the rows"

    def chunks(self, count: int) -> None:
        """So many steps of a prompt that does not end."""
        for _ in range(count):
            self.step(LONG, more=LONG)

    def issue(self, rows: Sequence[Rows], more: int) -> None:
        experts, driver = self.rig.experts, self.rig.driver
        tokens = len(rows[0].x)
        for made, buffers in zip(rows, self._buffers, strict=True):
            self._upload(made, buffers)
        experts.begin_step()
        try:
            experts.plan_step(tokens, more)
            for layer, buffers in enumerate(self._buffers):
                experts.launch(layer, tokens, buffers)
            driver.synchronise(self.rig.stream)
        finally:
            experts.end_step()
        experts.step_done()

    def check_slots(self) -> None:
        """Every slot holds what the tables say."""
        self.rig.experts.settle()
        for cache, bank in zip(self.rig.caches, self.rig.model.banks, strict=True):
            cache.check(lambda record, bank=bank: np.frombuffer(bank.record(record), np.uint8))

    def _allocate(self) -> MoeBuffers:
        rig = self.rig
        x_stride, y_stride = rig.model.hidden + 16, rig.model.hidden + 32
        sizes = (x_stride, TOP_K, TOP_K, y_stride)
        x, ids, weights, y = (rig._allocate(4 * rig.max_tokens * size) for size in sizes)
        return MoeBuffers(x, x_stride, ids, weights, rig._allocate(4), y, y_stride)

    def _upload(self, rows: Rows, buffers: MoeBuffers) -> None:
        tokens = len(rows.x)
        x = np.full((tokens, buffers.x_stride), np.nan, np.float32)
        x[:, : rows.x.shape[1]] = rows.x
        y = np.full((tokens, buffers.y_stride), UNTOUCHED, np.float32)
        data = ((buffers.x, x), (buffers.ids, rows.ids), (buffers.weights, rows.weights), (buffers.y, y))
        for address, values in (*data, (buffers.rows, np.array([tokens], np.int32))):
            self.rig.driver.upload(address, np.ascontiguousarray(values))


@dataclass(frozen=True)
class ModelShape:
    """Layers, experts of each, and those of a token."""

    layers: int
    experts: int
    top_k: int


@dataclass(frozen=True)
class OneOp:
    attrs: Mapping[str, int | float | str | bool]


class Issued:
    """What is issued for prompts on a model of a shape, in one bank whose experts are tiny and never run."""

    def __init__(
        self,
        shape: ModelShape,
        slots: int,
        policy: PrefillPolicy = TWO_LAYERS,
        residents: npt.NDArray[np.int32] | None = None,
        split: Split = ALL_FILL,
    ) -> None:
        """`residents` are records that lie in slots and have been used."""
        self.shape = shape
        self._driver = SimDriver(4 << 30, granularity=4096)
        self._main = self._driver.stream("main")
        bank = _tiny_bank(shape)
        arena = SlotArena(self._driver, bank.record_bytes, bank.count)
        self.cache = ExpertCache(
            self._driver,
            arena,
            layers=shape.layers,
            experts=shape.experts,
            record_bytes=bank.record_bytes,
            fillable=bank.count,
            capacity=bank.count,
            slots=slots,
            split=split,
            top_k=shape.top_k,
            max_tokens=1,
        )
        if residents is not None:
            self._settle_in(residents)
        somewhere = self._driver.allocate(1 << 12).address
        on_device = BankOnDevice(bank, somewhere, bank.count, arena, self.cache)
        ops = [OneOp({"layer": i, "activation": "silu", "alpha": 0.0, "limit": 0.0}) for i in range(shape.layers)]
        self.experts = HybridExperts(
            self._driver,
            ops,
            [on_device],
            top_k=shape.top_k,
            max_tokens=1,
            main=self._main,
            threads=1,
            prefill=policy,
        )
        self._buffers = MoeBuffers(somewhere, HIDDEN, somewhere, somewhere, somewhere, somewhere, HIDDEN)

    def prompt(self, chunks: Sequence[int]) -> Sequence[Node]:
        """All that is issued for a prompt that is read in chunks of so many tokens."""
        with self._driver.recording() as recording:
            for number, tokens in enumerate(chunks):
                more = chunks[number + 1] if number + 1 < len(chunks) else 0
                self.experts.plan_step(tokens, more)
                for layer in range(self.shape.layers):
                    self.experts.launch(layer, 1, self._buffers)
                recording.synchronise(self._main)
        return recording.nodes

    def _settle_in(self, records: npt.NDArray[np.int32]) -> None:
        tables = self.cache.tables
        slot_of, owner, stamps = tables.read("slot_of"), tables.read("owner"), tables.read("slot_used")
        slots = np.arange(self.cache.slots - len(records), self.cache.slots)
        slot_of[records], owner[slots], stamps[slots] = slots, records, 2
        tables.write_state(clock=2)
        for name, values in (("slot_of", slot_of), ("owner", owner), ("slot_used", stamps)):
            tables.write(name, values)


def _tiny_bank(shape: ModelShape) -> Bank:
    fields = (
        Field("gate_up", Shape("q8_0", 16, HIDDEN), 0),
        Field("down", Shape("bf16", HIDDEN, 16), RECORD_ALIGNMENT // 2),
    )
    count, size = shape.layers * shape.experts, record_size(fields)
    records = memoryview(bytearray(count * size))
    return Bank(fields, size, shape.experts, tuple(range(shape.layers)), (records,), count)


def seconds_of(parts: Sequence[tuple[float, float]], nodes: Sequence[Node]) -> Seconds:
    """Each part as (transfer, computation): its `fill` takes the one, its products the other, and the rest nothing.

    The products of a layer's residents are counted with its first part.
    """
    fills = [node.index for node in nodes if node.name == "fill"]
    products = [node.index for node in nodes if any(nodes[index].name == "fill" for index in node.dependencies)]
    products = [index for index in products if nodes[index].label == "main"]
    assert len(fills) == len(products) == len(parts), f"{len(fills)} fills and {len(products)} products"
    took = dict(zip(fills, (transfer for transfer, _ in parts), strict=True))
    took |= dict(zip(products, (computation for _, computation in parts), strict=True))
    return lambda node: took.get(node.index, 0.0)
