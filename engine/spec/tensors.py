"""Every tensor that a spec needs, under our names: dense ones once, an expert's once for all experts of a layer.

Names of ours: `embed`, `head`, `final_norm`, and for layer 3 `layers.3.attn_norm`, `layers.3.attn.q`,
`layers.3.ffn.gate`, `layers.3.router`, `layers.3.shared.up` and so on. A `key` is a name without its layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.spec.attention import Attention, LatentAttention
from engine.spec.attention_tensors import attention_tensors, latent_attention_tensors
from engine.spec.compressed import CompressedAttention
from engine.spec.compressed_tensors import compressed_attention_tensors
from engine.spec.feed_forward import Activation, Dense, Moe, Router, Shared
from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv
from engine.spec.recurrent_tensors import (
    delta_net_tensors,
    linear_attention_tensors,
    mamba2_tensors,
    mamba_tensors,
    short_conv_tensors,
)
from engine.spec.schema import LayerInputs, Spec
from engine.spec.streams import head_tensors, part_tensors
from engine.spec.wanted import Wanted, vector


def outer_tensors(spec: Spec) -> tuple[Wanted, ...]:
    """The tensors outside the layers."""
    hidden = spec.hidden_size
    head = () if spec.tied_head else (Wanted("head", spec.vocab_size, hidden),)
    bias = (vector("head_bias", spec.vocab_size),) if spec.head_bias else ()
    inputs = () if spec.layer_inputs is None else _layer_inputs(spec.layer_inputs, hidden, len(spec.layers))
    mix = () if spec.streams is None else tuple(head_tensors(spec.streams, hidden))
    return (Wanted("embed", spec.vocab_size, hidden), *_norm(spec, "final_norm"), *mix, *head, *bias, *inputs)


def layer_tensors(spec: Spec, layer: int) -> tuple[Wanted, ...]:
    """The dense tensors of one decoder layer; its routed experts are not among them."""
    return tuple(_layer_tensors(spec, layer))


def expert_tensors(spec: Spec, moe: Moe) -> tuple[Wanted, ...]:
    """What the record of one expert holds."""
    experts = moe.experts
    hidden, width = moe.latent or spec.hidden_size, experts.width
    gate = (Wanted("gate", width, hidden),) if experts.activation.is_gated else ()
    matrices = (*gate, Wanted("up", width, hidden), Wanted("down", hidden, width))
    if not experts.bias:
        return matrices
    gate_bias = (vector("gate_bias", width),) if experts.activation.is_gated else ()
    return (*matrices, *gate_bias, vector("up_bias", width), vector("down_bias", hidden))


def _layer_tensors(spec: Spec, layer: int) -> Iterator[Wanted]:
    hidden = spec.hidden_size
    mixer, ffn, residual = spec.layers[layer].mixer, spec.layers[layer].ffn, spec.layers[layer].residual
    if mixer is not None:
        if spec.streams is not None:
            yield from part_tensors(spec.streams, "attn", hidden)
        yield from _part_norms(spec, "attn", residual.norms_before, residual.norms_after)
    match mixer:
        case Attention():
            yield from attention_tensors(mixer, hidden)
        case LatentAttention():
            yield from latent_attention_tensors(mixer, hidden)
        case CompressedAttention():
            yield from compressed_attention_tensors(mixer, hidden)
        case DeltaNet():
            yield from delta_net_tensors(mixer, hidden)
        case LinearAttention():
            yield from linear_attention_tensors(mixer, hidden)
        case Mamba():
            yield from mamba_tensors(mixer, hidden)
        case Mamba2():
            yield from mamba2_tensors(mixer, hidden)
        case ShortConv():
            yield from short_conv_tensors(mixer, hidden)
    if ffn is not None:
        if spec.streams is not None:
            yield from part_tensors(spec.streams, "ffn", hidden)
        own = residual.norms_before and not residual.is_parallel
        yield from _part_norms(spec, "ffn", own, residual.norms_after)
    match ffn:
        case Dense():
            yield from _feed_forward("ffn", hidden, ffn.width, ffn.activation, ffn.bias)
        case Moe():
            yield from _router(ffn.router, ffn.choices, spec)
            if ffn.bias:
                yield vector("experts_bias", hidden)
            if ffn.apart:
                for key in ("experts_norm", "experts_post_norm", *["shared_post_norm"] * (ffn.shared is not None)):
                    yield from _norm(spec, key)
            if ffn.normed:
                yield from _norm(spec, "experts_shared_norm")
            if ffn.latent:
                yield Wanted("latent_in", ffn.latent, hidden)
                yield Wanted("latent_out", hidden, ffn.latent)
            yield from _shared(ffn.shared, hidden, ffn.shared_activation)
    if spec.layer_inputs is not None:
        yield Wanted("input.gate", spec.layer_inputs.width, hidden)
        yield Wanted("input.proj", hidden, spec.layer_inputs.width)
        yield from _norm(spec, "input.post_norm")
    if residual.scaled:
        yield vector("layer_scalar", 1)


def _layer_inputs(inputs: LayerInputs, hidden: int, layers: int) -> Iterator[Wanted]:
    """What the values that layers add at their ends are made of, for all layers side by side."""
    yield Wanted("inputs.embed", inputs.vocab_size, layers * inputs.width)
    yield Wanted("inputs.proj", layers * inputs.width, hidden)
    yield vector("inputs.norm", inputs.width)


def _part_norms(spec: Spec, part: str, before: bool, after: bool) -> Iterator[Wanted]:
    if before:
        yield from _norm(spec, f"{part}_norm")
    if after:
        yield from _norm(spec, f"{part}_post_norm")


def _norm(spec: Spec, key: str) -> Iterator[Wanted]:
    """A norm of the residual stream."""
    yield vector(key, spec.hidden_size)
    if spec.norm.bias:
        yield vector(f"{key}_bias", spec.hidden_size)


def _feed_forward(prefix: str, hidden: int, width: int, activation: Activation, bias: bool) -> Iterator[Wanted]:
    if activation.is_gated:
        yield Wanted(f"{prefix}.gate", width, hidden)
    yield Wanted(f"{prefix}.up", width, hidden)
    yield Wanted(f"{prefix}.down", hidden, width)
    if bias:
        if activation.is_gated:
            yield vector(f"{prefix}.gate_bias", width)
        yield vector(f"{prefix}.up_bias", width)
        yield vector(f"{prefix}.down_bias", hidden)


def _router(router: Router, count: int, spec: Spec) -> Iterator[Wanted]:
    yield Wanted("router", count, spec.hidden_size)
    if router.linear_bias:
        yield vector("router_bias", count)
    if router.normed:
        yield vector("router_norm", spec.hidden_size)
    if router.expert_scale:
        yield vector("router_expert_scale", count)
    if router.choice_bias:
        yield vector("router_choice_bias", count)
    if router.by_token:
        yield vector("router_by_token", spec.vocab_size * router.top_k)


def _shared(shared: Shared | None, hidden: int, activation: Activation) -> Iterator[Wanted]:
    if shared is None:
        return
    yield from _feed_forward("shared", hidden, shared.width, activation, bias=False)
    if shared.gated:
        yield Wanted("shared.sigmoid_gate", 1, hidden)
