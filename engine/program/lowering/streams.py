"""Lowering of a residual stream that is several: what parts read of it, and how they add to it."""

from __future__ import annotations

from engine.program.lowering.build import Build
from engine.spec.streams import Streams


def spread(build: Build, streams: Streams, stream: str) -> None:
    """All streams begin as the embedding, which lies in the first."""
    hidden = build.spec.hidden_size
    copy = {"heads": 1, "in_stride": hidden, "in_offset": 0, "out_stride": hidden, "out_offset": 0, "width": hidden}
    first = build.view(f"{stream}.stream0", stream, 0, hidden)
    for other in range(1, streams.count):
        build.op(
            "head_copy", (first,), (build.view(f"{stream}.stream{other}", stream, other * hidden, hidden),), **copy
        )


def collapse(build: Build, streams: Streams, stream: str, target: str, part: str) -> str:
    """One value for those of all streams, to `target`; the buffer of the weights, with those of `expand`."""
    return _collapse(build, streams, stream, target, f"{part}_mix", streams.weights, streams.iterations)


def collapse_at_the_end(build: Build, streams: Streams, stream: str, target: str) -> None:
    """As `collapse`, of wanted rows; or their mean."""
    if not streams.weighed_at_the_end:
        _mean(build, streams, stream, target)
        return
    _collapse(build, streams, stream, target, "head_mix", streams.count, 0)


def _mean(build: Build, streams: Streams, stream: str, target: str) -> None:
    hidden = build.spec.hidden_size
    parts = [build.view(f"{stream}.stream{i}", stream, i * hidden, hidden) for i in range(streams.count)]
    for first, second in zip((parts[0], *[target] * (len(parts) - 2)), parts[1:], strict=True):
        build.op("add", (first, second), (target,), scale=1.0)
    build.op("scale", (target,), (target,), ("",), by=1 / streams.count)


def expand(build: Build, streams: Streams, stream: str, part: str, weights: str) -> None:
    """Mixes the streams and adds to each its share of the buffer `part`."""
    build.op("expand", (stream, part, weights), (stream,), streams=streams.count)


def _collapse(build: Build, streams: Streams, stream: str, target: str, key: str, width: int, iterations: int) -> str:
    domain = build.buffers[target].domain
    normed = build.buffer("streams_normed", build.buffers[stream].width, domain)
    weights = build.buffer("stream_weights", width, domain)
    build.op("rms_norm", (stream,), (normed,), ("",), eps=build.spec.norm_eps, group=build.buffers[stream].width)
    build.linears(normed, {weights: key})
    vectors = (build.weight(f"{key}_base"), build.weight(f"{key}_scale"))
    shape = {"streams": streams.count, "iterations": iterations, "eps": streams.eps}
    build.op("stream_weights", (weights,), (weights,), vectors, **shape)
    build.op("collapse", (stream, weights), (target,), streams=streams.count)
    return weights
