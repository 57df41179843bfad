"""Negative controls: changes, one for each axis of the schema, that the parity check has to notice.

Each takes a spec (or the weights) and returns a changed one, or None where the axis is not there to be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.program.weights import Floats, Weights
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.spec.tensors import layer_tensors

from .axes import DENSE_CHANGES, SPEC_CHANGES


@dataclass(frozen=True)
class ChangedExperts:
    """Weights whose experts go through `change(layer, expert, weights)`."""

    weights: Weights
    change: Callable[[int, int, Weights], Mapping[str, Floats]]

    def dense(self, name: str) -> Floats:
        return self.weights.dense(name)

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        return self.change(layer, expert, self.weights)


def _swap_experts(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    """Experts 0 and 1 of the first layer in each other's place."""
    return weights.expert(layer, 1 - expert if layer == 0 and expert < 2 else expert)


def _swap_layers(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    """The experts of the first two layers in each other's place."""
    return weights.expert(1 - layer if layer < 2 else layer, expert)


def _swap_gate_and_up(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    tensors = weights.expert(layer, expert)
    return {**tensors, "gate": tensors["up"], "up": tensors["gate"]}


def _experts_have_gates(spec: Spec) -> bool:
    return any(isinstance(layer.ffn, Moe) and layer.ffn.experts.activation.is_gated for layer in spec.layers)


def _drop_biases(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    tensors = weights.expert(layer, expert)
    return {name: values for name, values in tensors.items() if not name.endswith("_bias")}


@dataclass(frozen=True)
class ChangedDense:
    """Weights whose dense tensors with a name that ends in `key` go through `change`."""

    weights: Weights
    key: str
    change: Callable[[Floats], Floats]

    def dense(self, name: str) -> Floats:
        values = self.weights.dense(name)
        return self.change(values) if name.endswith(f".{self.key}") else values

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        return self.weights.expert(layer, expert)


def _experts_have_biases(spec: Spec) -> bool:
    return any(isinstance(layer.ffn, Moe) and layer.ffn.experts.bias for layer in spec.layers)


@dataclass(frozen=True)
class WeightChange:
    """A change of the weights, and whether a spec has what it changes."""

    change: Callable[[int, int, Weights], Mapping[str, Floats]]
    applies: Callable[[Spec], bool]


WEIGHT_CHANGES: Mapping[str, WeightChange] = {
    "experts swapped": WeightChange(_swap_experts, lambda spec: bool(spec.moe_layers)),
    "experts of two layers swapped": WeightChange(_swap_layers, lambda spec: len(spec.moe_layers) > 1),
    "gate and up swapped": WeightChange(_swap_gate_and_up, _experts_have_gates),
    "expert biases dropped": WeightChange(_drop_biases, _experts_have_biases),
}


def _has(spec: Spec, key: str) -> bool:
    return any(wanted.key == key for layer in range(len(spec.layers)) for wanted in layer_tensors(spec, layer))


def has_axis(axis: str, spec: Spec) -> bool:
    """Whether a model has what the axis changes."""
    if axis in SPEC_CHANGES:
        return SPEC_CHANGES[axis](spec) is not None
    return _has(spec, DENSE_CHANGES[axis][0]) if axis in DENSE_CHANGES else WEIGHT_CHANGES[axis].applies(spec)


def sabotaged(axis: str, spec: Spec, weights: Weights) -> tuple[Spec, Weights] | None:
    """The spec and weights with the axis changed; None where the model does not have it."""
    if not has_axis(axis, spec):
        return None
    if axis in SPEC_CHANGES:
        return SPEC_CHANGES[axis](spec) or spec, weights
    if axis in DENSE_CHANGES:
        return spec, ChangedDense(weights, *DENSE_CHANGES[axis])
    return spec, ChangedExperts(weights, WEIGHT_CHANGES[axis].change)


AXES = (*SPEC_CHANGES, *DENSE_CHANGES, *WEIGHT_CHANGES)
