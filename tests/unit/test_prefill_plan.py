"""Whether whole layers are streamed, where each record goes, and the kernel that looks it up."""

from __future__ import annotations

import numpy as np
import pytest

from engine.device.sim import SimDriver
from engine.experts.prefill import ABSENT, PrefillPolicy, adopt, expected_share, stream_bank

QWEN = (256, 8)  # experts of a layer, and of a token
POLICY = PrefillPolicy()


def least_tokens(fraction: float, experts: int = 256, top_k: int = 8) -> int:
    return next(n for n in range(1, 10_000) if POLICY.streams(n, experts, top_k, fraction))


def test_the_expected_share_is_that_of_random_routing() -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 10, 60, 300):
        layers = [rng.permuted(np.tile(np.arange(64), (tokens, 1)), axis=1)[:, :6] for _ in range(200)]
        seen = np.mean([len(np.unique(layer)) for layer in layers]) / 64
        assert expected_share(tokens, 64, 6) == pytest.approx(seen, abs=0.01)


def test_short_steps_load_what_they_route_to_and_long_ones_everything() -> None:
    assert not any(POLICY.streams(tokens, *QWEN, fraction=1.0) for tokens in range(64))
    assert all(POLICY.streams(tokens, *QWEN, fraction=1.0) for tokens in (128, 512, 8176))
    assert not POLICY.streams(0, *QWEN, fraction=1.0)


def test_the_more_the_cpu_does_the_longer_a_step_must_be() -> None:
    """Fewer bytes cross the link on demand, until the CPU computes for longer than it reads."""
    lengths = [least_tokens(fraction) for fraction in (0.9, 0.7, 0.45, 0.25)]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] < 512
    assert not POLICY.streams(1 << 20, *QWEN, fraction=0.0), "all CPU is all CPU"


def test_once_a_step_is_long_enough_longer_ones_are() -> None:
    for fraction in (1.0, 0.75, 0.3):
        streams = [POLICY.streams(tokens, *QWEN, fraction=fraction) for tokens in range(1, 2000)]
        assert streams == sorted(streams)


@pytest.mark.parametrize(
    ("slots", "empty", "expected"),
    [
        (3788, 0, 512),  # two whole layers
        (1024, 0, 512),
        (600, 0, 300),  # half of a small cache
        (600, 600, 512),  # of which nothing would be lost
        (600, 400, 400),
        (5, 0, 2),
        (3, 0, 2),
        (2, 0, 2),  # the least there can be
        (1, 1, 0),
        (0, 0, 0),
    ],
)
def test_the_ring_is_two_layers_or_what_can_be_spared(slots: int, empty: int, expected: int) -> None:
    assert POLICY.ring_slots(slots, empty, 256) == expected


@pytest.mark.parametrize("free", [0, 1, 5, 13, 40])
def test_empty_slots_are_shared_by_the_layers(free: int) -> None:
    """Each is given once, to something that was absent, and no layer has much more of what it lacks than another."""
    rng = np.random.default_rng(free)
    slot_of = np.where(rng.random((5, 8)) < 0.3, 500 + np.arange(40).reshape(5, 8), ABSENT).astype(np.int32)
    slots = np.arange(100, 100 + free, dtype=np.int32)
    adopted = adopt(slot_of, slots)
    here = slot_of != ABSENT
    assert (adopted[here] == slot_of[here]).all(), "residents moved"
    given = adopted[~here & (adopted != ABSENT)]
    assert sorted(given.tolist()) == slots[: (~here).sum()].tolist()
    share = [(now[~was] != ABSENT).sum() / max(1, (~was).sum()) for now, was in zip(adopted, here, strict=True)]
    assert max(share) - min(share) <= 1 / 2


@pytest.mark.parametrize("seed", range(20))
def test_what_stays_comes_with_the_parts_of_its_layer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = np.where(rng.random((4, 9)) < 0.3, np.arange(36).reshape(4, 9), ABSENT).astype(np.int32)
    slot_of = adopt(found, np.arange(100, 100 + int(rng.integers(30)), dtype=np.int32))
    ring = np.arange(200, 200 + 2 * int(rng.integers(1, 6)), dtype=np.int32)
    for was, slots, layer in zip(found, slot_of, stream_bank(slot_of, ring, 2, 0, found), strict=True):
        filled = {e: s for part in layer.parts for e, s in zip(part.experts.tolist(), part.slots.tolist(), strict=True)}
        assert sorted(filled) == np.flatnonzero(was == ABSENT).tolist()
        for expert, slot in filled.items():
            stays = slots[expert] != ABSENT
            assert slot == slots[expert] if stays else slot >= 200
            assert layer.places[expert, 1] == 2 * slot + 1


@pytest.mark.parametrize("seed", range(40))
def test_every_absent_expert_comes_once_into_a_slot_that_nobody_reads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, experts, buffers = int(rng.integers(1, 6)), int(rng.integers(1, 20)), int(rng.integers(1, 3))
    ring = 100 + rng.permutation(200)[: buffers * int(rng.integers(1, 24))].astype(np.int32)
    slot_of = np.where(rng.random((layers, experts)) < 0.3, np.arange(layers * experts).reshape(layers, -1), ABSENT)
    turn = int(rng.integers(5))
    room = len(ring) // buffers

    number = turn
    for slots, layer in zip(slot_of, stream_bank(slot_of.astype(np.int32), ring, buffers, turn), strict=True):
        absent = set(np.flatnonzero(slots == ABSENT).tolist())
        brought = [expert for part in layer.parts for expert in part.experts.tolist()]
        assert sorted(brought) == sorted(absent)
        assert layer.residents == experts - len(absent)
        assert len(layer.parts) == -(-len(absent) // room), "more parts than it takes"
        for place, part in enumerate(layer.parts):
            assert part.buffer == number % buffers, "buffers are filled in turn"
            assert set(part.slots.tolist()) <= set(ring[part.buffer * room : (part.buffer + 1) * room].tolist())
            assert len(set(part.slots.tolist())) == len(part.experts) == len(part.slots)
            for expert, slot in zip(part.experts.tolist(), part.slots.tolist(), strict=True):
                assert layer.places[expert].tolist() == [place, 2 * slot + 1]
            number += 1
        for expert in set(range(experts)) - absent:
            assert layer.places[expert].tolist() == [0, 2 * slots[expert]]


@pytest.mark.parametrize(("bucket", "live"), [(1, 1), (7, 5), (33, 33), (90, 0)])
def test_pairs_are_placed_as_the_table_says(bucket: int, live: int) -> None:
    top_k, experts = 3, 11
    rng = np.random.default_rng(bucket)
    driver = SimDriver(1 << 20)
    places = np.stack([rng.integers(0, 3, experts), rng.integers(0, 50, experts)], axis=1).astype(np.int32)
    ids = rng.integers(0, experts + 3, (bucket, top_k)).astype(np.int32)
    ids[live:] = 1 << 30
    at = [driver.allocate(array.nbytes).address for array in (places, ids)]
    rows, target = driver.allocate(4).address, driver.allocate(4 * bucket * top_k + 4).address
    for address, array in ((at[0], places), (at[1], ids), (rows, np.array([live], np.int32))):
        driver.upload(address, array)
    for part in range(3):
        driver.upload(target, np.full(bucket * top_k + 1, 12345, np.int32))
        args = (at[0], experts, part, at[1], rows, bucket, top_k, target)
        driver.launch(driver.stream(), driver.kernel("place_pairs"), (-(-bucket * top_k // 64), 1, 1), 64, args)
        found = np.zeros(bucket * top_k + 1, np.int32)
        driver.allocate(16).free()  # waits
        driver.download(target, found)
        twin = [
            -2
            if row >= live
            else -3
            if expert >= experts
            else int(places[expert, 1])
            if places[expert, 0] == part
            else -2
            for row in range(bucket)
            for expert in (ids[row] if row < live else [0] * top_k)
        ]
        assert found.tolist() == [*twin, 12345]
