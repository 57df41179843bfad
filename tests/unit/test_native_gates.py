"""The native norms, gates and decays around recurrences: against numpy, and the same bits on every instruction set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import _native
from engine.base.errors import UnsupportedError
from tests.unit.recurrence_rig import ACTIVATIONS, Case, Doubles, Rig, Run, advance, tokens_of, vector

LENGTH = 40
Reads, Weights, Attrs = Sequence[Doubles], Sequence[Doubles | None], Mapping[str, Any]


def l2_norm(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    groups = reads[0].reshape(len(reads[0]), -1, attrs["group"])
    return (groups / np.sqrt((groups**2).sum(-1, keepdims=True) + attrs["eps"])).reshape(reads[0].shape)


def decay(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    a_log, bias = (np.asarray(w) for w in weights)
    rates = np.repeat(np.exp(a_log), len(bias) // len(a_log))
    shifted, bound = reads[0] + bias, attrs["bound"]
    return np.asarray(bound / (1 + np.exp(-rates * shifted)) if bound else -rates * np.logaddexp(0, shifted))


def gated_norm(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    x, gate, w = reads[0], ACTIVATIONS[attrs["activation"]](reads[1]), np.asarray(weights[0])
    if attrs["gate_first"]:
        x = x * gate
    groups = x.reshape(len(x), -1, attrs["group"])
    normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + attrs["eps"])
    scaled = normed.reshape(x.shape) * np.tile(w, x.shape[1] // len(w))
    return np.asarray(scaled if attrs["gate_first"] else scaled * gate)


def gate(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    x, opened = reads[0], ACTIVATIONS[attrs["activation"]](reads[1])
    return np.asarray(x * np.repeat(opened, x.shape[1] // opened.shape[1], axis=1))


def relu2(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    return np.asarray(np.maximum(reads[0], 0) ** 2)


def layer_norm(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    groups = reads[0].reshape(len(reads[0]), -1, attrs["group"])
    centred = groups - groups.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + attrs["eps"]) * np.asarray(weights[0])
    return np.asarray(normed + (0 if weights[1] is None else weights[1])).reshape(reads[0].shape)


def bound(attrs: Attrs, reads: Reads, weights: Weights) -> Doubles:
    limit = attrs["bound"]
    return np.asarray(limit * np.tanh(reads[0] / limit) if attrs["smooth"] else np.clip(reads[0], -limit, limit))


def norm_case(width: int, group: int, own: bool, **attrs: Any) -> Case:
    weights = (vector(width if own else group, 1.0),)
    return Case(
        "gated_norm", ((width, 2.0), (width, 3.0)), width, gated_norm, {"group": group, "eps": 1e-3} | attrs, weights
    )


CASES = {
    "l2_norm": Case("l2_norm", ((60, 1.0),), 60, l2_norm, {"eps": 0.1, "group": 20}),
    "l2_norm in place": Case("l2_norm", ((64, 1.0),), 64, l2_norm, {"eps": 1e-6, "group": 16}, in_place=True),
    "decay a head": Case("decay", ((9, 4.0),), 9, decay, {"heads": 9, "bound": 0.0}, (vector(9), vector(9))),
    "decay a key channel": Case("decay", ((66, 4.0),), 66, decay, {"heads": 3, "bound": 0.0}, (vector(3), vector(66))),
    "decay with a bound": Case("decay", ((66, 4.0),), 66, decay, {"heads": 3, "bound": -5.0}, (vector(3), vector(66))),
    "layer norm": Case("layer_norm", ((60, 1.0),), 60, layer_norm, {"eps": 0.1, "group": 20}, (vector(20), None)),
    "layer norm with a bias": Case(
        "layer_norm", ((69, 3.0),), 69, layer_norm, {"eps": 1e-5, "group": 69}, (vector(69), vector(69)), in_place=True
    ),
    "bound": Case("bound", ((37, 2.0),), 37, bound, {"bound": 1.5, "smooth": False}),
    "smooth bound": Case("bound", ((37, 9.0),), 37, bound, {"bound": 5.0, "smooth": True}, in_place=True),
    "norm and gate": norm_case(60, 20, False, gate_first=False, activation="silu"),
    "norm and sigmoid gate": norm_case(64, 16, False, gate_first=False, activation="sigmoid"),
    "gate and norm": norm_case(50, 25, True, gate_first=True, activation="silu"),
    "gate and norm in place": replace(norm_case(48, 48, True, gate_first=True, activation="silu"), in_place=True),
    "gate": Case("gate", ((37, 2.0), (37, 2.0)), 37, gate, {"activation": "sigmoid"}),
    "gate by product": Case("gate", ((64, 2.0), (64, 2.0)), 64, gate, {"activation": "none"}, in_place=True),
    "gate by silu": Case("gate", ((20, 2.0), (20, 2.0)), 20, gate, {"activation": "silu"}),
    "gate by softplus": Case("gate", ((57, 2.0), (3, 2.0)), 57, gate, {"activation": "softplus"}),
    "gate of one value": Case("gate", ((37, 2.0), (1, 2.0)), 37, gate, {"activation": "none"}, in_place=True),
    "gate of runs": Case("gate", ((57, 2.0), (3, 2.0)), 57, gate, {"activation": "silu"}),
    "sigmoid gate of one value": Case("gate", ((37, 2.0), (1, 2.0)), 37, gate, {"activation": "sigmoid"}),
    "relu2": Case("relu2", ((45, 2.0),), 45, relu2, {}),
}


def output(rig: Rig, tokens: Any, **settings: Any) -> Any:
    run = Run(tokens, 0)
    advance(rig.executor(**settings), [(run, len(tokens))])
    return run.output


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_numpy_on_every_instruction_set(name: str) -> None:
    rig, tokens = Rig(CASES[name]), tokens_of(LENGTH)
    exact, scalar = rig.model(tokens), output(rig, tokens, isa="scalar")
    assert np.abs(scalar - exact).max() <= 3e-6 * np.abs(exact).max()
    for isa in _native.isas():
        np.testing.assert_array_equal(output(rig, tokens, isa=isa, threads=2).view(np.uint32), scalar.view(np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_number_stays_with_its_token(name: str) -> None:
    rig = Rig(CASES[name])
    clean = output(rig, np.arange(3, dtype=np.int32))
    rig.table[1] = np.nan
    spoiled = output(rig, np.arange(3, dtype=np.int32))
    assert np.isnan(spoiled[1]).all()
    np.testing.assert_array_equal(spoiled[[0, 2]], clean[[0, 2]])


REFUSED = {
    "a group that does not divide": (replace(CASES["l2_norm"], attrs={"eps": 0.1, "group": 17}), "divide"),
    "heads that do not divide": (replace(CASES["decay a key channel"], attrs={"heads": 7, "bound": 0.0}), "divide"),
    "a gate of another width": (replace(CASES["gate"], reads=((37, 1.0), (36, 1.0))), "divide"),
    "weights of another length": (replace(CASES["norm and gate"], weights=(vector(30),)), "values instead of"),
    "an unknown activation": (replace(CASES["gate"], attrs={"activation": "gelu"}), "gelu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        Rig(case).executor()
