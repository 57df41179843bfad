"""From a spec to a program. What each operation means stands in docs/design.md."""

from __future__ import annotations

from collections.abc import Callable

from engine.program.ir import Program
from engine.program.lowering.attention import lower_attention, lower_latent_attention
from engine.program.lowering.build import RESIDUAL, Build
from engine.program.lowering.compressed import lower_compressed_attention
from engine.program.lowering.delta import lower_delta_net, lower_linear_attention
from engine.program.lowering.feed_forward import DEFERRED, lower_dense, lower_moe
from engine.program.lowering.layer_inputs import lower_layer_input, lower_layer_inputs
from engine.program.lowering.lifetimes import share_storage
from engine.program.lowering.state_spaces import lower_mamba, lower_mamba2, lower_short_conv
from engine.program.lowering.streams import collapse, collapse_at_the_end, expand, spread
from engine.spec.attention import Attention, LatentAttention
from engine.spec.compressed import CompressedAttention
from engine.spec.feed_forward import Dense, Moe
from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv
from engine.spec.residual import Residual
from engine.spec.schema import Ffn, Mixer, Spec

NORMED, PART = "normed", "part"  # a norm of the residual stream, what a mixer or expert part adds to it
COLLAPSED = "collapsed"  # one value for those of several residual streams
MIXED = "mixer_part"  # what a mixer adds beside a feed-forward part that reads the same
LOGITS = "logits"


def lower(spec: Spec, context: int = 0) -> Program:
    """The operations of a decoder, for a context of `context` tokens (0: all the model can).

    Logits are computed for selected rows only. Buffers whose lifetimes do not meet share storage.
    """
    build = Build(spec, context or spec.context_length)
    _embedding(build)
    if spec.layer_inputs is not None:
        lower_layer_inputs(build, spec.layer_inputs)
    for layer in range(len(spec.layers)):
        _decoder_layer(build, layer)
    _head(build)
    return Program(
        buffers=share_storage(build.buffers, build.ops, keep=(RESIDUAL, LOGITS, DEFERRED, *build.kept)),
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
    hidden, streams = build.spec.hidden_size, build.spec.streams
    build.buffer(RESIDUAL, hidden * (1 if streams is None else streams.count))
    first = RESIDUAL if streams is None else build.view(f"{RESIDUAL}.stream0", RESIDUAL, 0, hidden)
    build.op("embed", (), (first,), ("embed",), scale=build.spec.embedding_scale)
    if streams is not None:
        spread(build, streams, RESIDUAL)


def _decoder_layer(build: Build, layer: int) -> None:
    build.layer = layer
    decoder = build.spec.layers[layer]
    mixer, ffn, residual = decoder.mixer, decoder.ffn, decoder.residual
    if residual.is_parallel and mixer is not None and ffn is not None:
        _parallel_parts(build, mixer, ffn)
    else:
        if mixer is not None:
            scales = residual.attn_keep, residual.attn_add
            _part(build, "attn", residual, scales, lambda source, target: _mixer(build, mixer, source, target))
        if ffn is not None:
            scales = residual.ffn_keep, residual.ffn_add
            _part(build, "ffn", residual, scales, lambda source, target: _feed_forward(build, ffn, source, target))
    before = build.spec.layers[layer - 1].ffn if layer else None
    if isinstance(before, Moe) and before.deferred:
        _add(build, DEFERRED)
    if build.spec.layer_inputs is not None:
        lower_layer_input(build, build.spec.layer_inputs, build.buffer(PART, build.spec.hidden_size))
    if residual.scaled:
        build.op("scale", (RESIDUAL,), (RESIDUAL,), (build.weight("layer_scalar"),))
    build.layer_ends.append(len(build.ops))


def _part(
    build: Build,
    keys: str,
    residual: Residual,
    scales: tuple[float, float],
    operations: Callable[[str, str], None],
) -> None:
    """What `operations` make of the stream, with the norms before and after them, and its addition to the stream.

    `scales` are those of a stream that is normed, and of what is added to it.
    """
    source, part = RESIDUAL, build.buffer(PART, build.spec.hidden_size)
    streams, weights = build.spec.streams, ""
    if streams is not None:
        source = build.buffer(COLLAPSED, build.spec.hidden_size)
        weights = collapse(build, streams, RESIDUAL, source, keys)
    if residual.norms_before:
        stream, source = source, build.buffer(NORMED, build.spec.hidden_size)
        build.stream_norm(stream, source, f"{keys}_norm")
    operations(source, part)
    if residual.norms_after:
        build.stream_norm(part, part, f"{keys}_post_norm")
    if streams is not None:
        expand(build, streams, RESIDUAL, part, weights)
    elif residual.is_normed:
        keep, add = scales
        if keep != 1.0:
            build.op("scale", (source,), (source,), ("",), by=keep)
        build.op("add", (source, part), (RESIDUAL,), scale=add * build.spec.residual_scale)
    else:
        _add(build, part)


def _parallel_parts(build: Build, mixer: Mixer, ffn: Ffn) -> None:
    """Both parts of a layer read one norm."""
    hidden = build.spec.hidden_size
    normed, mixed, part = build.buffer(NORMED, hidden), build.buffer(MIXED, hidden), build.buffer(PART, hidden)
    build.stream_norm(RESIDUAL, normed, "attn_norm")
    _mixer(build, mixer, normed, mixed)
    _feed_forward(build, ffn, normed, part)
    _add(build, mixed)
    _add(build, part)


def _add(build: Build, part: str) -> None:
    build.op("add", (RESIDUAL, part), (RESIDUAL,), scale=build.spec.residual_scale)


def _mixer(build: Build, mixer: Mixer, source: str, target: str) -> None:
    match mixer:
        case Attention():
            lower_attention(build, mixer, source, target)
        case LatentAttention():
            lower_latent_attention(build, mixer, source, target)
        case CompressedAttention():
            lower_compressed_attention(build, mixer, source, target)
        case DeltaNet():
            lower_delta_net(build, mixer, source, target)
        case LinearAttention():
            lower_linear_attention(build, mixer, source, target)
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
    streams = build.spec.streams
    if streams is None:
        build.op("select", (RESIDUAL,), (selected,))
    else:
        wide = build.buffer("selected_streams", hidden * streams.count, domain="row")
        build.op("select", (RESIDUAL,), (wide,))
        collapse_at_the_end(build, streams, wide, selected)
    build.stream_norm(selected, selected, "final_norm", build.spec.final_norm_eps)
    matrix, bias = "embed" if build.spec.tied_head else "head", "head_bias" if build.spec.head_bias else ""
    build.op("linear", (selected,), (logits,), (matrix, bias), scale=build.spec.logit_scale)
    if build.spec.logit_softcap:
        build.op("bound", (logits,), (logits,), bound=build.spec.logit_softcap, smooth=True)
