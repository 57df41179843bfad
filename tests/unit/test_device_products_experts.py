"""Experts in their slots on a device: products for few and for many pairs, lists of pairs, gated units, biases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from engine.device import products
from engine.device.driver import Grid
from engine.files.codecs import CODECS
from tests.unit.device_products import UNTOUCHED, Device, Floats, Matrix, bits, random_input, random_matrix

Targets = npt.NDArray[np.int32]
HITS, FILLS, BOTH = 0, 1, 2
CPU, PADDED = -1, -2
EXPERTS, SLOTS, TOP_K = 7, 9, 3
OFFSET = 192  # of the matrix in its slot


@dataclass(frozen=True)
class Routing:
    """Pairs of `live` of all tokens; each expert is in a slot of its own, was filled into it, or is the CPU's."""

    ids: npt.NDArray[np.int32]
    target: Targets
    live: int

    def wanted(self, which: int) -> list[int]:
        """Pairs in order."""
        return [i for i, t in enumerate(self.target.ravel()) if t >= 0 and which in (BOTH, t & 1)]


def random_routing(tokens: int, live: int, random: np.random.Generator, experts: int = EXPERTS) -> Routing:
    ids = np.array([random.permutation(experts)[:TOP_K] for _ in range(tokens)], np.int32)
    slots = random.permutation(max(SLOTS, experts))[:experts]
    where = np.where(random.random(experts) < 0.2, CPU, 2 * slots + random.integers(0, 2, experts)).astype(np.int32)
    target = where[ids]
    target[live:] = PADDED
    return Routing(ids, target, live)


class Slots:
    """A matrix of every expert, at OFFSET in its slot; what else is in the slots is noise."""

    def __init__(self, device: Device, matrices: list[Matrix], random: np.random.Generator) -> None:
        self.matrices = matrices
        self.stride = OFFSET + matrices[0].packed.size + 64
        memory = random.integers(0, 256, (len(matrices), self.stride), dtype=np.uint8)
        for slot, matrix in zip(memory, matrices, strict=True):
            slot[OFFSET : OFFSET + matrix.packed.size] = matrix.packed
        self.address = device.put(memory)


def multiply(
    device: Device, kernel: str, slots: Slots, routing: Routing, which: int, x: Floats, per_pair: bool
) -> npt.NDArray[np.uint32]:
    matrix = slots.matrices[0]
    pairs, stride = routing.target.size, matrix.rows + 2
    y = device.untouched(pairs, stride)
    address, x_bytes = device.input(matrix.codec, x)
    target, rows = device.put(routing.target), device.number(routing.live)
    args = (
        *(slots.address, slots.stride, OFFSET, matrix.rows, matrix.cols, target, which, TOP_K, int(per_pair)),
        *(address, x_bytes, rows, y, stride),
    )
    if kernel == "expert":
        grid, block, lists = products.few_grid(matrix.rows, pairs), products.FEW_THREADS, ()
    else:
        lists = group(device, routing, which, EXPERTS)
        grid = products.many_grid(matrix.rows, products.most_groups(pairs, EXPERTS))
        block = products.MANY_THREADS
    device.run(f"{kernel}_{matrix.codec}", grid, block, *args, *lists)
    return device.get(y, (pairs, stride), np.uint32)


def group(
    device: Device, routing: Routing, which: int, experts: int, threads: int = products.GROUP_THREADS
) -> tuple[int, int]:
    """Addresses of `starts` and `order`."""
    pairs = routing.target.size
    starts, order = device.room(products.starts_bytes(pairs, experts)), device.room(4 * pairs)
    inputs = (device.put(routing.target), device.put(routing.ids), device.number(routing.live), TOP_K, which, experts)
    device.run("group_pairs", (1, 1, 1), threads, *inputs, starts, order)
    return starts, order


@pytest.mark.parametrize("kernel", ["expert", "expert_many"])
@pytest.mark.parametrize("codec", CODECS)
def test_pairs_are_multiplied_with_the_matrix_in_their_slot(codec: str, kernel: str) -> None:
    random = np.random.default_rng(11)
    device = Device(seed=2)
    cols = max(64, CODECS[codec].cols_unit)
    matrices = [random_matrix(codec, 40, cols, random, extreme=i % 2 == 1) for i in range(SLOTS)]
    slots = Slots(device, matrices, random)
    for tokens, live, which, per_pair in ((1, 1, BOTH, False), (4, 3, HITS, True), (30, 29, FILLS, False)):
        routing = random_routing(tokens, live, random)
        x = random_input(tokens * TOP_K if per_pair else tokens, cols, random)
        y = multiply(device, kernel, slots, routing, which, x, per_pair)
        wanted = routing.wanted(which)
        assert wanted, "nothing to multiply"
        for pair in wanted:
            row = x[pair : pair + 1] if per_pair else x[pair // TOP_K : pair // TOP_K + 1]
            expected = matrices[routing.target.ravel()[pair] >> 1].times(row)[0]
            np.testing.assert_array_equal(y[pair, :40], bits(expected), f"pair {pair}")
        assert (np.delete(y, wanted, 0) == UNTOUCHED).all(), "pairs of others are written"
        assert (y[:, 40:] == UNTOUCHED).all(), "rows beyond the matrix are written"


@pytest.mark.parametrize("kernel", ["expert", "expert_many"])
def test_a_matrix_in_another_slot_shows(kernel: str) -> None:
    random = np.random.default_rng(12)
    matrices = [random_matrix("mxfp4", 32, 96, random) for _ in range(SLOTS)]
    routing = random_routing(8, 8, random)
    x = random.standard_normal((8, 96), dtype=np.float32)
    results = []
    for order in (matrices, [matrices[1], matrices[0], *matrices[2:]]):
        device = Device()
        results.append(multiply(device, kernel, Slots(device, order, random), routing, BOTH, x, False))
    moved = [pair for pair in routing.wanted(BOTH) if routing.target.ravel()[pair] >> 1 in (0, 1)]
    assert moved
    for pair in range(routing.target.size):
        assert (results[0][pair] == results[1][pair]).all() == (pair not in moved)


@pytest.mark.parametrize("threads", [32, 1024])
@pytest.mark.parametrize(
    ("tokens", "live", "experts"), [(1, 0, 3), (1, 1, 3), (40, 37, 7), (700, 700, 5), (300, 290, 1500)]
)
@pytest.mark.parametrize("which", [HITS, FILLS, BOTH])
def test_groups_hold_every_wanted_pair_once(tokens: int, live: int, experts: int, which: int, threads: int) -> None:
    random = np.random.default_rng(tokens)
    routing = random_routing(tokens, live, random, experts)
    device = Device(seed=which)
    addresses = group(device, routing, which, experts, threads)
    most = products.most_groups(routing.target.size, experts)
    starts = device.get(addresses[0], (1 + 2 * most,), np.int32)
    order = device.get(addresses[1], (routing.target.size,), np.int32)
    assert 0 <= starts[0] <= most
    ids, seen = routing.ids.ravel(), []
    for begin, count in starts[1 : 1 + 2 * starts[0]].reshape(-1, 2):
        assert 1 <= count <= products.GROUP_TOKENS
        pairs = order[begin : begin + count].tolist()
        assert len(set(ids[pairs])) == 1, "a group of several experts"
        seen += pairs
    assert sorted(seen) == routing.wanted(which)
    needed = sum(-(-n // products.GROUP_TOKENS) for n in np.bincount(ids[seen], minlength=1) if n)
    assert starts[0] == needed, "groups are not filled"


# --- between the matrices


def exp(x: Floats) -> Floats:
    """docs/numerics.md, with each fma rounded once: products of f32 are exact in float64, and so are these sums but
    for the last bit, which float128 keeps."""
    wide = np.longdouble

    def fma(a: Floats | float, b: Floats | float, c: Floats | float) -> Floats:
        return (wide(np.float32(a)) * wide(np.float32(b)) + wide(np.float32(c))).astype(np.float32)

    clamped = np.clip(x, np.float32(-87), np.float32(88))
    magic = np.float32(12582912)
    shifted = fma(clamped, 1.44269504, magic)
    n = shifted - magic
    r = fma(n, -1.42860677e-6, fma(n, -0.693145752, clamped))
    p = np.full_like(x, 1.98756915e-4)
    for c in (1.39819995e-3, 8.33345205e-3, 4.16657962e-2, 1.66666657e-1, 0.5, 1.0, 1.0):
        p = fma(p, r, c)
    result = (bits(p) + ((bits(shifted) - np.uint32(0x4B400000)) << np.uint32(23))).view(np.float32)
    return np.where(np.isnan(x), x, result)


def glu_by_the_contract(kind: int, gate: Floats, up: Floats, alpha: np.float32, limit: np.float32) -> Floats:
    one = np.float32(1)
    if kind == 0:
        h = gate / (one + exp(-gate)) * up
    else:
        g = np.where(limit < gate, limit, gate)
        u = np.where(limit < up, limit, up)
        u = np.where(u < -limit, -limit, u)
        h = (u + one) * (g / (one + exp(-(alpha * g))))
    h[np.isnan(h)] = np.nan
    return h


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("width", [5, 16, 77])
def test_the_gated_unit_has_the_bits_of_the_contract(width: int, kind: int, interleaved: bool, biases: bool) -> None:
    random = np.random.default_rng(width)
    device = Device()
    routing = random_routing(6, 5, random)
    pairs, padded = routing.target.size, -(-width // 16) * 16
    gate = random.normal(0, 8, (pairs, width)).astype(np.float32)
    up = random.normal(0, 8, (pairs, width)).astype(np.float32)
    gate[::4, 1], up[::5, 2], gate[::3, 3] = np.nan, np.inf, -1e30
    both = np.full((pairs, 2 * padded), np.nan, np.float32)
    columns = np.arange(width)
    both[:, columns // 16 * 32 + columns % 16 if interleaved else columns] = gate
    both[:, columns // 16 * 32 + columns % 16 + 16 if interleaved else columns + padded] = up
    vectors = random.standard_normal((SLOTS, 3, width), dtype=np.float32)
    slots, stride = device.put(vectors), vectors[0].nbytes
    offsets = (width * 4, 2 * width * 4) if biases else (2**64 - 1, 2**64 - 1)
    h = device.untouched(pairs, width + 1)
    alpha, limit = np.float32(1.702), np.float32(7)
    target, rows = device.put(routing.target), device.number(routing.live)
    device.run(
        "expert_glu",
        products.row_grid(width, pairs),
        products.ROW_THREADS,
        *(slots, stride, *offsets, int(interleaved), width, kind, alpha, limit, target, HITS, rows, TOP_K),
        *(device.put(both), 2 * padded, h, width + 1),
    )
    y = device.get(h, (pairs, width + 1), np.uint32)
    wanted = routing.wanted(HITS)
    assert wanted
    in_slot = routing.target.ravel()[wanted] >> 1
    with np.errstate(all="ignore"):
        own_gate = gate[wanted] + vectors[in_slot, 1] if biases else gate[wanted]
        own_up = up[wanted] + vectors[in_slot, 2] if biases else up[wanted]
        expected = glu_by_the_contract(kind, own_gate, own_up, alpha, limit)
    np.testing.assert_array_equal(y[wanted, :width], bits(expected))
    assert (np.delete(y, wanted, 0) == UNTOUCHED).all()


def test_biases_are_added_to_wanted_pairs_alone() -> None:
    random = np.random.default_rng(21)
    device = Device()
    routing = random_routing(5, 4, random)
    pairs, n = routing.target.size, 200
    y = random_input(pairs, n + 8, random)
    vectors = random.standard_normal((SLOTS, 2, n), dtype=np.float32)
    address, target, rows = device.put(y), device.put(routing.target), device.number(routing.live)
    bias = (device.put(vectors), vectors[0].nbytes, n * 4, n)
    grid: Grid = products.row_grid(n, pairs)
    device.run("expert_bias", grid, products.ROW_THREADS, *bias, target, FILLS, rows, TOP_K, address, n + 8)
    expected = y.copy()
    wanted = routing.wanted(FILLS)
    assert wanted
    expected[wanted, :n] += vectors[routing.target.ravel()[wanted] >> 1, 1]
    expected[np.isnan(expected)] = np.nan
    np.testing.assert_array_equal(device.get(address, y.shape, np.uint32), bits(expected))
