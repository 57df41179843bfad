"""The tensors of mixers that keep a state of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator

from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv
from engine.spec.wanted import Wanted, projection, projections, vector


def delta_net_tensors(mixer: DeltaNet, hidden: int) -> Iterator[Wanted]:
    keys, values, groups = mixer.key_width, mixer.value_width, mixer.key_heads
    yield Wanted("delta.q", keys, hidden, groups)
    yield Wanted("delta.k", keys, hidden, groups)
    yield Wanted("delta.v", values, hidden, groups)
    yield from _through(mixer.gate_rank, "delta.gate", values, hidden, groups)
    yield from _through(mixer.decay_rank, "delta.decay", mixer.decay_width, hidden, groups)
    yield Wanted("delta.beta", mixer.heads, hidden, groups)
    yield vector("delta.conv", (2 * keys + values) * mixer.kernel)
    yield vector("delta.a_log", mixer.heads)
    yield vector("delta.dt_bias", mixer.decay_width)
    yield vector("delta.norm", mixer.v_dim)
    yield Wanted("delta.o", hidden, values)


def linear_attention_tensors(mixer: LinearAttention, hidden: int) -> Iterator[Wanted]:
    for name in ("q", "k", "v"):
        yield Wanted(f"linear.{name}", mixer.width, hidden, mixer.heads)
    yield Wanted("linear.gate", mixer.width, hidden)
    yield vector("linear.norm", mixer.width)
    yield Wanted("linear.o", hidden, mixer.width)


def _through(rank: int, key: str, rows: int, hidden: int, heads: int) -> Iterator[Wanted]:
    """A matrix from the hidden state, or two with `rank` values between them."""
    if rank:
        yield Wanted(f"{key}_a", rank, hidden)
    yield Wanted(key, rows, rank or hidden, heads)


def mamba_tensors(mixer: Mamba, hidden: int) -> Iterator[Wanted]:
    channels = mixer.channels
    yield from projections(hidden, {"mamba.in": channels, "mamba.gate": channels}, mixer.bias)
    yield from _conv("mamba.conv", channels * mixer.kernel, channels if mixer.conv_bias else 0)
    for name, rows in (("step", mixer.step_rank), ("b", mixer.state_dim), ("c", mixer.state_dim)):
        yield Wanted("mamba.step_a" if name == "step" else f"mamba.{name}", rows, channels)
        yield vector(f"mamba.{name}_norm", rows)
    yield Wanted("mamba.step", channels, mixer.step_rank)
    yield vector("mamba.dt_bias", channels)
    yield vector("mamba.a_log", channels * mixer.state_dim)
    yield vector("mamba.d", channels)
    yield from projection("mamba.o", hidden, channels, mixer.bias)


def mamba2_tensors(mixer: Mamba2, hidden: int) -> Iterator[Wanted]:
    outputs = {"mamba.gate": mixer.width, "mamba.in": mixer.conv_width, "mamba.step": mixer.heads}
    yield from projections(hidden, outputs, mixer.bias)
    yield from _conv("mamba.conv", mixer.conv_width * mixer.kernel, mixer.conv_width if mixer.conv_bias else 0)
    for name in ("dt_bias", "a_log", "d"):
        yield vector(f"mamba.{name}", mixer.heads)
    yield vector("mamba.norm", mixer.width)
    yield from projection("mamba.o", hidden, mixer.width, mixer.bias)


def short_conv_tensors(mixer: ShortConv, hidden: int) -> Iterator[Wanted]:
    yield from projections(hidden, dict.fromkeys(("conv.before", "conv.after", "conv.x"), hidden), mixer.bias)
    yield from _conv("conv.w", hidden * mixer.kernel, hidden if mixer.bias else 0)
    yield from projection("conv.o", hidden, hidden, mixer.bias)


def _conv(key: str, weights: int, biases: int) -> Iterator[Wanted]:
    yield vector(key, weights)
    if biases:
        yield vector(f"{key}_bias", biases)
