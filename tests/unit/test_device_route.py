"""The router's kernel against the native operation, bit for bit: ties, groups, what is no number, forced ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine import _native
from engine.device.sim import SimDriver
from engine.files.ftw.opening import Tensor
from engine.program.device.row_operations import SCORINGS
from engine.program.ir import Buffer, Op, Program

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
TOKEN_IDS = 3


@dataclass(frozen=True)
class Route:
    """A router of `experts`; with `bias` the choice has one, with `by_token` a table chooses, with `scales`
    weights have a factor of their expert.
    """

    experts: int = 16
    top_k: int = 4
    scoring: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1
    normalize: bool = False
    scale: float = 1.0
    jitter: float = 0.0
    bias: bool = False
    by_token: bool = False
    scales: bool = False

    def attributes(self) -> dict[str, Any]:
        names = ("top_k", "scoring", "groups", "top_groups", "group_top", "normalize", "scale", "jitter")
        return {name: getattr(self, name) for name in names}

    def table(self) -> Floats:
        """Experts of each of TOKEN_IDS tokens, end to end."""
        random = np.random.default_rng(8)
        rows = [random.permutation(self.experts)[: self.top_k] for _ in range(TOKEN_IDS)]
        return np.concatenate(rows).astype(np.float32)

    def scale_values(self) -> Floats:
        return np.random.default_rng(9).normal(1, 0.3, self.experts).astype(np.float32)

    def bias_values(self) -> Floats:
        return np.random.default_rng(7).normal(0, 0.2, self.experts).astype(np.float32)


ROUTES = {
    "softmax": Route(),
    "normalised and scaled": Route(normalize=True, scale=2.5),
    "sigmoid with bias": Route(scoring="sigmoid", bias=True, normalize=True),
    "softmax over the chosen": Route(scoring="softmax_topk", bias=True),
    "sigmoid of the chosen": Route(scoring="sigmoid_topk", bias=True, normalize=True, scale=1.5),
    "root of softplus": Route(scoring="sqrt_softplus", bias=True, normalize=True, scale=1.5),
    "by token": Route(scoring="sqrt_softplus", normalize=True, by_token=True),
    "scales": Route(normalize=True, scale=1.5, scales=True),
    "scales and a table": Route(by_token=True, scales=True),
    "sparse mixer": Route(experts=37, top_k=2, scoring="sparse_mixer", jitter=0.4, scale=1.5),
    "sparse mixer of many": Route(experts=40, top_k=5, scoring="sparse_mixer", jitter=5.0),
    "one of few": Route(experts=5, top_k=1),
    "all": Route(experts=7, top_k=7, scoring="softmax_topk"),
    "odd": Route(experts=37, top_k=9, normalize=True),
    "many": Route(experts=4096, top_k=64),
    "groups": Route(experts=24, groups=4, top_groups=2, group_top=2, scoring="sigmoid", bias=True),
    "groups of one": Route(experts=8, groups=8, top_groups=5, group_top=3),
    "many groups": Route(experts=512, groups=256, top_groups=40, group_top=1, top_k=8),
}


def token_ids(tokens: int) -> Ints:
    """A token id for each of so many."""
    return (np.arange(tokens) % TOKEN_IDS).astype(np.int32)


def native_route(route: Route, logits: Floats, forced: Ints | None = None) -> tuple[Ints, Floats]:
    """Ids and weights [tokens, top_k] by the native operation."""
    tokens = len(logits)
    bias = route.bias_values()
    dense = {
        "table": Tensor("f32", TOKEN_IDS, route.experts, memoryview(np.zeros(_table_bytes(route.experts), np.uint8))),
        "by_token": _vector(route.table()),
        "bias": _vector(bias),
        "scales": _vector(route.scale_values()),
    }
    buffers = {
        "x": Buffer(route.experts),
        "ids": Buffer(route.top_k, dtype="i32"),
        "weights": Buffer(route.top_k),
        "logits": Buffer(route.experts, domain="row"),
    }
    ops = (
        Op("embed", (), ("x",), ("table",), {"scale": 1.0}),
        Op(
            "route",
            ("x",),
            ("ids", "weights"),
            ("bias" if route.bias else "", "by_token" if route.by_token else "", *["scales"] * route.scales),
            route.attributes(),
        ),
        Op("select", ("x",), ("logits",)),
    )
    program = Program(buffers, ops, (), (), "logits", route.experts, "x", (2,))
    executor = _native.Executor(program, dense, (), threads=1, max_tokens=tokens, pages=1 + tokens // 16)
    executor.force_routing(None if forced is None else forced[None])
    executor.write_buffer("x", logits)
    pages = np.arange(1 + tokens // 16, dtype=np.int32)
    none = np.zeros(0, np.int32)
    positions = np.arange(tokens, dtype=np.int32)
    executor.step(token_ids(tokens), positions, np.array([0, tokens], np.int32), [pages], none, 1, 2)
    return executor.buffer("ids").astype(np.int32), executor.buffer("weights")


def device_route(route: Route, logits: Floats, forced: Ints | None = None, padding: int = 0) -> tuple[Ints, Floats]:
    """The same by the kernel; `padding` rows more in the grid than there are tokens."""
    driver = SimDriver()
    tokens, bucket = len(logits), len(logits) + padding

    def put(values: npt.NDArray[Any]) -> int:
        memory = driver.allocate(max(4, values.nbytes))
        driver.upload(memory.address, values)
        return memory.address

    ids, weights = np.full((bucket, route.top_k), -7, np.int32), np.full((bucket, route.top_k), -7, np.float32)
    out = put(ids), put(weights)
    shape = (route.experts, route.top_k, SCORINGS[route.scoring], route.groups, route.top_groups, route.group_top)
    bias = put(route.bias_values()) if route.bias else 0
    scales = put(route.scale_values()) if route.scales else 0
    rest = (int(route.normalize), route.scale, route.jitter, scales, put(forced) if forced is not None else 0)
    rest += (put(route.table()) if route.by_token else 0, put(token_ids(tokens)))
    args = (put(logits), route.experts, bias, *shape, *rest, put(np.array([tokens], np.int32)), *out)
    stream = driver.stream()
    driver.launch(stream, driver.kernel("route"), (bucket, 1, 1), 32, args)
    driver.synchronise(stream)
    for address, values in zip(out, (ids, weights), strict=True):
        driver.download(address, values)
    assert (ids[tokens:] == -7).all(), "a row that is not there was routed"
    return ids[:tokens], weights[:tokens]


def assert_alike(route: Route, logits: Floats, forced: Ints | None = None) -> None:
    ids, weights = device_route(route, logits, forced, padding=3)
    expected_ids, expected_weights = native_route(route, logits, forced)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(weights.view(np.uint32), expected_weights.view(np.uint32))


def random_logits(route: Route, tokens: int = 12) -> Floats:
    return np.random.default_rng(route.experts).normal(0, 2, (tokens, route.experts)).astype(np.float32)


@pytest.mark.parametrize("name", ROUTES)
def test_random_logits(name: str) -> None:
    assert_alike(ROUTES[name], random_logits(ROUTES[name]))


@pytest.mark.parametrize("name", ROUTES)
def test_ties_go_to_the_lower_id(name: str) -> None:
    logits = np.round(random_logits(ROUTES[name]))
    logits[0] = 0.0
    logits[1, ::2] = -0.0
    logits[1, 1::2] = 0.0
    assert_alike(ROUTES[name], logits)


@pytest.mark.parametrize("name", ROUTES)
def test_what_is_no_number(name: str) -> None:
    route = ROUTES[name]
    logits = random_logits(route)
    random = np.random.default_rng(3)
    for row, value in enumerate((np.nan, np.inf, -np.inf, np.nan, np.nan)):
        logits[row, random.random(route.experts) < 0.4] = value
    logits[3, 0] = np.nan
    logits[4] = np.nan
    logits[5] = -np.inf
    logits[6, 0], logits[7, -1] = np.nan, np.nan
    assert_alike(route, logits)


@pytest.mark.parametrize("name", ROUTES)
def test_forced_ids_have_the_weights_of_the_chosen(name: str) -> None:
    route = ROUTES[name]
    random = np.random.default_rng(5)
    forced = np.array([random.permutation(route.experts)[: route.top_k] for _ in range(12)], np.int32)
    assert_alike(route, random_logits(route), forced)
    ids, _ = device_route(route, random_logits(route), forced)
    np.testing.assert_array_equal(ids, forced)


def test_a_table_decides_by_the_token_alone() -> None:
    route = ROUTES["by token"]
    ids, _ = device_route(route, random_logits(route))
    np.testing.assert_array_equal(ids, route.table().astype(np.int32).reshape(TOKEN_IDS, -1)[token_ids(12)])


def test_a_bias_decides_who_is_chosen_and_not_its_weight() -> None:
    """Negative control: a router without the bias chooses others."""
    route = ROUTES["sigmoid with bias"]
    plain = Route(**{**vars(route), "bias": False})
    assert (device_route(route, random_logits(route))[0] != device_route(plain, random_logits(route))[0]).any()


def _table_bytes(cols: int) -> int:
    return _native.packed_bytes("f32", TOKEN_IDS, cols)


def _vector(values: Floats) -> Tensor:
    return Tensor("f32", 1, len(values), memoryview(np.pad(values, (0, 16)).view(np.uint8)), vector=True)
