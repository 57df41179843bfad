"""Random experts on the simulated device and the CPU at once, beside the native operation on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.device.sim import SimDriver, SimGraph
from engine.experts.arena import SlotArena
from engine.experts.bank_on_device import BankOnDevice
from engine.experts.cache import ExpertCache
from engine.experts.hybrid import PREFILL, HybridExperts, MoeBuffers, Signals
from engine.experts.prefill import PrefillPolicy
from engine.experts.split import Split
from engine.files.codecs import CODECS, align
from engine.files.ftw.manifest import Field, Shape, record_size
from engine.files.ftw.opening import Bank
from engine.memory.blocks import ContextRoom
from engine.program.executor import Floats, Ints
from engine.program.native import NativeExecutor
from tests.same_bits import assert_same_bits
from tests.unit.native_model import EXPERTS, TOP_K, RandomModel

MIB = 1 << 20
NAMES = ("gate", "up", "down")
UNTOUCHED = np.float32(12345.0)
HALF = Split.carry(0.5)


@dataclass(frozen=True)
class BankKind:
    """What the experts of a bank are made of. `up` and `down` "" are of gate's codec; `fused`: gate and up in one."""

    gate: str = "q4_0"
    up: str = ""
    down: str = ""
    fused: bool = True
    biases: bool = False
    activation: str = "silu"
    layers: int = 1
    width: int = 96

    @property
    def codecs(self) -> dict[str, str]:
        return {"gate": self.gate, "up": self.up or self.gate, "down": self.down or self.gate}


class ExpertsModel(RandomModel):
    """Layers of routers and experts, a bank of each kind."""

    def __init__(self, kinds: Sequence[BankKind], seed: int = 0) -> None:
        codecs = [codec for kind in kinds for codec in kind.codecs.values()]
        super().__init__(codec=max(codecs, key=lambda codec: CODECS[codec].cols_unit), seed=seed)
        for kind in kinds:
            self.kind = kind
            first = len(self.banks)
            for _ in range(kind.layers):
                self.moe(activation=kind.activation)
            self.banks[first:] = [_joined(self.banks[first:])]

    def bank(self, biases: bool, fused: bool) -> None:
        kind, width = self.kind, align(self.kind.width, CODECS[self.codec].cols_unit if "_k" in self.codec else 1)
        shapes = {name: (self.hidden, width) if name == "down" else (width, self.hidden) for name in NAMES}
        fields: list[Field] = []
        for name in ("gate_up", "down") if kind.fused else NAMES:
            of = name.removesuffix("_up") if kind.fused else name
            fields.append(Field(name, Shape(kind.codecs[of], *shapes[of]), self._end(fields)))
        for name in NAMES if kind.biases else ():
            fields.append(Field(f"{name}_bias", Shape("f32", 1, shapes[name][0], vector=True), self._end(fields)))
        records = np.zeros((EXPERTS, record_size(tuple(fields))), np.uint8)
        for record in records:
            for name in NAMES:
                self._place(record, fields, name, self.packed(kind.codecs[name], *shapes[name])[0])
                if kind.biases:
                    bias = self.rng.normal(0, 0.3, shapes[name][0]).astype(np.float32)
                    self._place(record, fields, f"{name}_bias", bias.view(np.uint8))
        layer = (len(self.experts),)
        self.banks.append(
            Bank(tuple(fields), records.shape[1], EXPERTS, layer, (memoryview(records.reshape(-1)),), EXPERTS)
        )
        self.experts.append([])


def _joined(banks: Sequence[Bank]) -> Bank:
    """One bank of several layers, all alike; its records lie in shards of five."""
    data = np.concatenate([np.frombuffer(bank.shards[0], np.uint8) for bank in banks])
    size = 5 * banks[0].record_bytes
    shards = tuple(memoryview(data[begin : begin + size]) for begin in range(0, len(data), size))
    layers = tuple(bank.layers[0] for bank in banks)
    return replace(banks[0], layers=layers, shards=shards, records_per_shard=5)


@dataclass(frozen=True)
class Rows:
    """What a layer gets, and what the native operation makes of it."""

    x: Floats
    ids: Ints
    weights: Floats
    y: Floats


class Reference:
    """The layers of a model by the native executor."""

    def __init__(self, model: ExpertsModel, max_tokens: int) -> None:
        self._program = model.program()
        self._hidden = model.hidden
        self.layers = len(model.experts)
        self._executor = NativeExecutor(
            self._program,
            model.dense,
            model.banks,
            threads=2,
            room=ContextRoom(1),
            kv_dtype="f32",
            max_tokens=max_tokens,
        )
        self._routers = [index - 1 for index, op in enumerate(self._program.ops) if op.kind == "route"]

    def rows(self, layer: int, tokens: int, rng: np.random.Generator) -> Rows:
        """Random rows and routing of one layer. Tokens often choose alike; a token has no expert twice."""
        native = self._executor._native
        x = rng.normal(0, 1, (tokens, self._hidden)).astype(np.float32)
        native.write_buffer("x", x)
        favourites = rng.permutation(EXPERTS)
        ids = np.zeros((self.layers, tokens, TOP_K), np.int32)
        for token in range(tokens):
            among = favourites if rng.random() < 0.5 else favourites[: TOP_K + 1]
            ids[layer, token] = rng.permutation(among)[:TOP_K]
        ids[np.arange(self.layers) != layer] = np.arange(TOP_K)
        self._executor.force_routing(ids)
        count = np.arange(tokens, dtype=np.int32)
        table = np.zeros(tokens, np.int32)
        begin = self._routers[layer]
        native.step(count * 0, count, np.array([0, tokens], np.int32), [table], count[:0], begin, begin + 3)
        weights = native.buffer(f"weights{layer}")
        return Rows(x, ids[layer], weights, native.buffer(f"mixed{layer}"))


class HybridRig:
    """The layers of a model on a device. `slots` of each bank, of `fillable` records of each (None: all)."""

    def __init__(
        self,
        model: ExpertsModel,
        slots: Sequence[int],
        split: Split,
        *,
        max_tokens: int = 8,
        signals: Signals = "memory",
        patience: float = 60.0,
        seed: int = 0,
        threads: int = 2,
        fillable: int | None = None,
        driver: type[SimDriver] = SimDriver,
        prefill: PrefillPolicy = PREFILL,
    ) -> None:
        self.driver = driver(512 * MIB, seed=seed, granularity=4096)
        self.stream = self.driver.stream("main")
        self.model, self.max_tokens = model, max_tokens
        self._made = ExitStack()
        self.caches: list[ExpertCache] = []
        self.arenas: list[SlotArena] = []
        banks = [
            self._place(bank, count, split, bank.count if fillable is None else fillable)
            for bank, count in zip(model.banks, slots, strict=True)
        ]
        ops = [op for op in model.ops if op.kind == "experts"]
        self.experts = HybridExperts(
            self.driver,
            ops,
            banks,
            top_k=TOP_K,
            max_tokens=max_tokens,
            main=self.stream,
            threads=threads,
            patience=patience,
            signals=signals,
            prefill=prefill,
        )
        self._made.callback(self.experts.close)
        self._x_stride, self._y_stride = model.hidden + 16, model.hidden + 32  # rows need not lie dense
        sizes = (self._x_stride, TOP_K, TOP_K, self._y_stride)
        self._x, self._ids, self._weights, self._y = (self._allocate(4 * max_tokens * size) for size in sizes)
        self._live = self._allocate(4)

    def close(self) -> None:
        self._made.close()

    def _allocate(self, size: int) -> int:
        memory = self.driver.allocate(size)
        self._made.callback(memory.free)
        return memory.address

    def _place(self, bank: Bank, slots: int, split: Split, fillable: int) -> BankOnDevice:
        pinned = [self.driver.pin(shard, len(shard)) for shard in bank.shards]
        for pin in pinned:
            self._made.callback(pin.free)
        shards = self._allocate(8 * len(pinned))
        self.driver.upload(shards, np.array([pin.address for pin in pinned], np.uint64))
        arena = SlotArena(self.driver, bank.record_bytes, fillable)
        self._made.callback(arena.close)
        self.arenas.append(arena)
        cache = ExpertCache(
            self.driver,
            arena,
            layers=len(bank.layers),
            experts=EXPERTS,
            record_bytes=bank.record_bytes,
            fillable=fillable,
            capacity=fillable,
            slots=slots,
            split=split,
            top_k=TOP_K,
            max_tokens=self.max_tokens,
        )
        self._made.callback(cache.free)
        self.caches.append(cache)
        return BankOnDevice(bank, shards, bank.records_per_shard, arena, cache)

    # --- steps of one layer

    @property
    def buffers(self) -> MoeBuffers:
        return MoeBuffers(self._x, self._x_stride, self._ids, self._weights, self._live, self._y, self._y_stride)

    def capture(self, layer: int, bucket: int) -> SimGraph:
        with self.driver.capture(self.stream) as graph:
            self.experts.launch(layer, bucket, self.buffers)
        assert isinstance(graph, SimGraph)
        return graph

    def step(self, layer: int, rows: Rows, bucket: int, graph: SimGraph | None = None) -> Floats:
        """One step, of the launches that were captured or of new ones."""
        self.upload(rows, bucket)
        self.experts.begin_step()
        try:
            if graph is not None:
                graph.launch(self.stream)
            else:
                self.experts.launch(layer, bucket, self.buffers)
            self.driver.synchronise(self.stream)
        finally:
            self.experts.end_step()
        y = np.zeros((bucket, self._y_stride), np.float32)
        self.driver.download(self._y, y)
        tokens = len(rows.x)
        assert (y[tokens:] == UNTOUCHED).all(), "padded rows were written"
        return y[:tokens, : self.model.hidden]

    def upload(self, rows: Rows, bucket: int) -> None:
        """Rows beyond the live ones hold what no kernel may read as if it were sound."""
        tokens = len(rows.x)
        x = np.full((bucket, self._x_stride), np.nan, np.float32)
        x[:tokens, : self.model.hidden] = rows.x
        ids = np.full((bucket, TOP_K), 1 << 30, np.int32)
        ids[:tokens] = rows.ids
        weights = np.full((bucket, TOP_K), np.nan, np.float32)
        weights[:tokens] = rows.weights
        y = np.full((bucket, self._y_stride), UNTOUCHED, np.float32)
        for address, data in ((self._x, x), (self._ids, ids), (self._weights, weights), (self._y, y)):
            self.driver.upload(address, data)
        self.driver.upload(self._live, np.array([tokens], np.int32))

    def counts(self) -> npt.NDArray[np.int64]:
        """Hits, fills and experts of the CPU, of all plans and banks."""
        totals = [cache.read_totals() for cache in self.caches]
        return np.array([sum(getattr(total, name) for total in totals) for name in ("hits", "fills", "cpu")])


class Pair:
    """A model on a device and by itself."""

    def __init__(self, kinds: Sequence[BankKind], slots: Sequence[int], split: Split, **settings: Any) -> None:
        model = ExpertsModel(kinds)
        self.rig = HybridRig(model, slots, split, **settings)
        self.reference = Reference(model, self.rig.max_tokens)
        self.rng = np.random.default_rng(len(kinds))

    def agree(self, layer: int, tokens: int, bucket: int = 0, graph: SimGraph | None = None) -> None:
        """Both make the same of random rows, to the bit."""
        rows = self.reference.rows(layer, tokens, self.rng)
        assert_same_bits(self.rig.step(layer, rows, bucket or tokens, graph), rows.y)
