"""What tests of families look at in a spec."""

from __future__ import annotations

from engine.spec.attention import Attention
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.spec.tensors import expert_tensors, layer_tensors, outer_tensors
from engine.spec.wanted import Wanted


def attention(spec: Spec, layer: int) -> Attention:
    mixer = spec.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def parameters(spec: Spec) -> int:
    """Values of all tensors that a spec needs."""

    def values(wanted: Wanted) -> int:
        return (wanted.rows or 1) * wanted.cols

    total = sum(map(values, outer_tensors(spec)))
    for index, layer in enumerate(spec.layers):
        total += sum(map(values, layer_tensors(spec, index)))
        if isinstance(layer.ffn, Moe):
            total += layer.ffn.experts.count * sum(map(values, expert_tensors(spec, layer.ffn)))
    return total
