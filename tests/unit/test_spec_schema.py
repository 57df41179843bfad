"""The spec as data: what it refuses, and its way through JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, FreetokenError, UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.feed_forward import Activation, Dense, Experts, Moe, Router, Shared
from engine.spec.rope import LinearScaling, Llama3Scaling, LongScaling, Rope, YarnScaling
from engine.spec.schema import Layer, Spec

YARN = YarnScaling(32.0, 4096, 32.0, 1.0, False, 1.35)
WINDOWED = Attention(8, 2, 16, 0.25, Rope(1e4, 16), qk_norm="head", q_bias=True, sinks=True, window=128, softcap=30.0)
LATENT = LatentAttention(4, 0, 32, 16, 8, 16, 0.2, Rope(1e4, 8, pairs=True, scaling=YARN), 1e-6, bias=True)
MOE = Moe(
    Router(2, "sigmoid", 4, 2, 2, normalize=True, scale=2.5, linear_bias=True, choice_bias=True),
    Experts(8, 48, Activation("clamped_silu", 1.702, 7.0), bias=True),
    Shared(96, gated=True),
)
EVERYTHING = Spec(
    family="example",
    vocab_size=512,
    hidden_size=64,
    layers=(
        Layer(WINDOWED, Dense(96, bias=True)),
        Layer(LATENT, MOE),
        Layer(WINDOWED, MOE),
        Layer(Attention(4, 4, 16, 0.25, None), Moe(Router(1), Experts(2, 8))),
        Layer(Attention(4, 4, 4, 0.5, Rope(1e4, 4, scaling=LinearScaling(2.0))), Dense(96)),
        Layer(Attention(4, 4, 4, 0.5, Rope(1e4, 4, scaling=Llama3Scaling(8.0, 64, 1.0, 4.0))), Dense(96)),
        Layer(Attention(4, 4, 4, 0.5, Rope(1e4, 4, scaling=LongScaling((1.0, 2.0), (3.0, 4.0), 64, 1.2))), Dense(96)),
    ),
    norm_eps=1e-5,
    context_length=4096,
    tied_head=True,
    embedding_scale=12.0,
    residual_scale=0.22,
    logit_scale=1 / 6,
)


def plain() -> dict[str, Any]:
    """The example as it is read from a file."""
    data: dict[str, Any] = json.loads(json.dumps(EVERYTHING.to_json()))
    return data


def test_json_keeps_everything() -> None:
    assert Spec.from_json(plain()) == EVERYTHING


def test_a_file_of_an_older_release_lacks_fields_that_have_defaults() -> None:
    data = plain()
    for mixer in data["mixers"]:
        mixer.pop("gated", None)
    for ffn in data["ffns"]:
        ffn.pop("latent", None)
    assert Spec.from_json(data) == EVERYTHING


def test_parts_that_are_alike_are_written_once() -> None:
    data = plain()
    assert len(data["mixers"]) == 6
    assert data["layers"][:3] == [[0, 0, 0], [1, 1, 0], [0, 1, 0]]


def test_moe_layers_are_counted_among_all() -> None:
    assert EVERYTHING.moe_layers == (1, 2, 3)


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def _remove(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


LONG_FACTORS = ("mixers", 5, "rope", "scaling", "long_factors")
BROKEN = {
    "missing": (_remove("vocab_size"), CorruptFileError, "vocab_size"),
    "missing inside": (_remove("mixers", 0, "heads"), CorruptFileError, "spec.layers[0].mixer lacks the field heads"),
    "no layers": (_remove("layers"), CorruptFileError, "layers"),
    "unknown": (_set("hyper_connections", value=4), UnsupportedError, "hyper_connections"),
    "unknown inside": (_set("ffns", 1, "router", "temperature", value=0.1), UnsupportedError, "temperature"),
    "unknown mixer": (_set("mixers", 0, "kind", value="delta"), UnsupportedError, "'delta'"),
    "unknown scaling": (_set("mixers", 1, "rope", "scaling", "kind", value="ntk"), UnsupportedError, "'ntk'"),
    "text for a number": (_set("hidden_size", value="64"), CorruptFileError, "hidden_size must be a whole number"),
    "true for a number": (_set("hidden_size", value=True), CorruptFileError, "hidden_size must be a whole number"),
    "number for true": (_set("tied_head", value=1), CorruptFileError, "tied_head must be true or false"),
    "fraction for a size": (_set("ffns", 0, "width", value=96.5), CorruptFileError, "width must be a whole number"),
    "not a number": (_set("norm_eps", value=float("nan")), CorruptFileError, "norm_eps must be a number"),
    "infinite": (_set("norm_eps", value=float("inf")), CorruptFileError, "norm_eps must be a number"),
    "beyond floats": (_set("norm_eps", value=10**400), CorruptFileError, "norm_eps must be a number"),
    "beyond sizes": (_set("vocab_size", value=2**40), CorruptFileError, "vocab_size must be a whole number"),
    "null": (_set("family", value=None), CorruptFileError, "family must be a string"),
    "a mixer is a list": (_set("mixers", 0, value=[]), CorruptFileError, "spec.layers[0].mixer must be an object"),
    "list of texts": (_set(*LONG_FACTORS, value=["2"]), CorruptFileError, "long_factors[0]"),
    "scalar for a list": (_set(*LONG_FACTORS, value=2), CorruptFileError, "long_factors must be a list"),
    "layer out of range": (_set("layers", 2, value=[6, 0]), CorruptFileError, "spec.layers[2]"),
    "layer below range": (_set("layers", 2, value=[-1, 0]), CorruptFileError, "spec.layers[2]"),
    "layer of nothing": (_set("layers", 2, value=[None, None]), CorruptFileError, "must have a mixer"),
    "layer by a truth": (_set("layers", 2, value=[True, 0]), CorruptFileError, "spec.layers[2]"),
    "layer of four": (_set("layers", 2, value=[0, 0, 0, 0]), CorruptFileError, "spec.layers[2]"),
    "zero layers": (_set("layers", value=[]), CorruptFileError, "num_layers"),
    "zero width": (_set("ffns", 0, "width", value=0), CorruptFileError, "width must be positive"),
    "uneven heads": (_set("mixers", 0, "kv_heads", value=3), CorruptFileError, "8 heads cannot share 3"),
    "too many chosen": (_set("ffns", 1, "router", "top_k", value=5), CorruptFileError, "cannot choose 5 of 4 experts"),
    "uneven groups": (_set("ffns", 1, "router", "groups", value=3), CorruptFileError, "3 equal groups"),
    "worth of three": (_set("ffns", 1, "router", "group_top", value=3), CorruptFileError, "no 3 best ones"),
    "unknown scoring": (_set("ffns", 1, "router", "scoring", value="tanh"), CorruptFileError, "tanh"),
    "unknown activation": (_set("ffns", 0, "activation", "name", value="tanh"), CorruptFileError, "tanh"),
    "odd rope": (_set("mixers", 0, "rope", "dim", value=7), CorruptFileError, "even number"),
    "rope beyond the head": (_set("mixers", 0, "rope", "dim", value=18), CorruptFileError, "18 of 16"),
    "rope without a base": (_set("mixers", 0, "rope", "theta", value=1), CorruptFileError, "rope_theta"),
    "factors": (_set(*LONG_FACTORS, value=[1.0]), CorruptFileError, "1 factors for 2"),
}


@pytest.mark.parametrize(("change", "error", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], error: type[FreetokenError], words: str
) -> None:
    data = plain()
    change(data)
    with pytest.raises(error) as caught:
        Spec.from_json(data)
    assert words in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("data", [None, [], "spec", 3])
def test_something_else_than_an_object_is_refused(data: Any) -> None:
    with pytest.raises(CorruptFileError, match="object"):
        Spec.from_json(data)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(inner for key, value in items for inner in _paths(value, (*path, key)))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(place=st.sampled_from(_paths(plain())[1:]), value=ANYTHING)
def test_any_value_anywhere_gives_a_spec_or_a_sentence(place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(plain())
    _set(*place, value=value)(data)
    try:
        spec = Spec.from_json(data)
    except FreetokenError:
        return
    assert Spec.from_json(spec.to_json()) == spec
