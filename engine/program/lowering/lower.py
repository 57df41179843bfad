"""From a spec to a program. What each operation means stands in docs/design.md."""

from __future__ import annotations

from collections.abc import Callable

from engine.program.ir import Program
from engine.program.lowering.attention import lower_attention, lower_latent_attention
from engine.program.lowering.build import Build
from engine.program.lowering.delta import lower_delta_net
from engine.program.lowering.feed_forward import lower_dense, lower_moe
from engine.program.lowering.lifetimes import share_storage
from engine.program.lowering.state_spaces import lower_mamba, lower_mamba2, lower_short_conv
from engine.spec.recurrent import DeltaNet, Mamba, Mamba2, ShortConv
from engine.spec.schema import Attention, Dense, Ffn, LatentAttention, Mixer, Moe, Spec

RESIDUAL, NORMED, PART = "x", "normed", "part"  # the residual stream, its norm, what a mixer or expert part adds to it
LOGITS = "logits"


def lower(spec: Spec, context: int = 0) -> Program:
    """The operations of a decoder, for a context of `context` tokens (0: all the model can).

    Logits are computed for selected rows only. Buffers whose lifetimes do not meet share storage.
    """
    build = Build(spec, context or spec.context_length)
    _embedding(build)
    for layer in range(len(spec.layers)):
        _decoder_layer(build, layer)
    _head(build)
    return Program(
        buffers=share_storage(build.buffers, build.ops, keep=(RESIDUAL, LOGITS)),
        ops=tuple(build.ops),
        caches=tuple(build.caches),
        ropes=tuple(build.ropes),
        output=LOGITS,
        vocab_size=spec.vocab_size,
        residual=RESIDUAL,
        layer_ends=tuple(build.layer_ends),
        states=tuple(build.states),
    )


def _embedding(build: Build) -> None:
    build.buffer(RESIDUAL, build.spec.hidden_size)
    build.op("embed", (), (RESIDUAL,), ("embed",), scale=build.spec.embedding_scale)


def _decoder_layer(build: Build, layer: int) -> None:
    build.layer = layer
    mixer, ffn = build.spec.layers[layer].mixer, build.spec.layers[layer].ffn
    if mixer is not None:
        _part(build, "attn_norm", lambda: _mixer(build, mixer, NORMED, PART))
    if ffn is not None:
        _part(build, "ffn_norm", lambda: _feed_forward(build, ffn, NORMED, PART))
    build.layer_ends.append(len(build.ops))


def _part(build: Build, norm: str, operations: Callable[[], None]) -> None:
    """Norm, what `operations` make of it, and its addition to the residual stream."""
    normed = build.buffer(NORMED, build.spec.hidden_size)
    part = build.buffer(PART, build.spec.hidden_size)
    build.norm(RESIDUAL, normed, norm)
    operations()
    build.op("add", (RESIDUAL, part), (RESIDUAL,), scale=build.spec.residual_scale)


def _mixer(build: Build, mixer: Mixer, source: str, target: str) -> None:
    match mixer:
        case Attention():
            lower_attention(build, mixer, source, target)
        case LatentAttention():
            lower_latent_attention(build, mixer, source, target)
        case DeltaNet():
            lower_delta_net(build, mixer, source, target)
        case Mamba():
            lower_mamba(build, mixer, source, target)
        case Mamba2():
            lower_mamba2(build, mixer, source, target)
        case ShortConv():
            lower_short_conv(build, mixer, source, target)


def _feed_forward(build: Build, ffn: Ffn, source: str, target: str) -> None:
    match ffn:
        case Dense():
            lower_dense(build, ffn, source, target)
        case Moe():
            lower_moe(build, ffn, source, target)


def _head(build: Build) -> None:
    build.layer = -1
    hidden = build.spec.hidden_size
    selected = build.buffer("selected", hidden, domain="row")
    logits = build.buffer(LOGITS, build.spec.vocab_size, domain="row")
    build.op("select", (RESIDUAL,), (selected,))
    build.norm(selected, selected, "final_norm")
    matrix = "embed" if build.spec.tied_head else "head"
    build.op("linear", (selected,), (logits,), (matrix, ""), scale=build.spec.logit_scale)
