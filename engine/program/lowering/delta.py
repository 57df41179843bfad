"""Lowering of mixers that keep a state."""

from __future__ import annotations

from engine.program.lowering.build import Build
from engine.spec.recurrent import DeltaNet, LinearAttention

UNIT_EPS = 1e-6  # under the root of a query's or a key's length, in every published model of this kind


def lower_delta_net(build: Build, mixer: DeltaNet, source: str, target: str) -> None:
    """Queries, keys and values lie in one buffer, which one convolution passes over in place."""
    keys, values = mixer.key_width, mixer.value_width
    qkv = build.buffer("delta", 2 * keys + values)
    q = build.view("delta.q", qkv, 0, keys)
    k = build.view("delta.k", qkv, keys, keys)
    v = build.view("delta.v", qkv, 2 * keys, values)
    gate, mixed = build.buffer("delta_gate", values), build.buffer("delta_mixed", values)
    decay, beta = build.buffer("delta_decay", mixer.decay_width), build.buffer("delta_beta", mixer.heads)
    ranks = {"gate": mixer.gate_rank, "decay": mixer.decay_rank}
    between = {key: build.buffer(f"delta_{key}_a", rank) for key, rank in ranks.items() if rank}
    straight = {name: f"delta.{key}" for key, name in (("gate", gate), ("decay", decay)) if key not in between}
    through = {name: f"delta.{key}_a" for key, name in between.items()}
    build.linears(source, {q: "delta.q", k: "delta.k", v: "delta.v", **straight, **through, beta: "delta.beta"})
    for key, name in between.items():
        build.linears(name, {{"gate": gate, "decay": decay}[key]: f"delta.{key}"})
    conv(build, qkv, "delta.conv", "", 2 * keys + values, mixer.kernel, "silu")
    unit = build.view("delta.qk", qkv, 0, 2 * keys)
    build.op("l2_norm", (unit,), (unit,), eps=UNIT_EPS, group=mixer.k_dim)
    if mixer.beta_scale != 1:
        # the correction beta (v - S^T k) k^T is quadratic in k and v together: their root scales it
        learned = build.view("delta.kv", qkv, keys, keys + values)
        build.op("scale", (learned,), (learned,), ("",), by=mixer.beta_scale**0.5)
    decays = (build.weight("delta.a_log"), build.weight("delta.dt_bias"))
    build.op("decay", (decay,), (decay,), decays, heads=mixer.heads, bound=mixer.decay_bound)
    build.op(
        "delta_rule",
        (q, k, v, decay, beta),
        (mixed,),
        state=build.state(mixer.heads * mixer.k_dim * mixer.v_dim),
        key_heads=mixer.key_heads,
        heads=mixer.heads,
        k_dim=mixer.k_dim,
        v_dim=mixer.v_dim,
        scale=mixer.scale,
    )
    build.op(
        "gated_norm",
        (mixed, gate),
        (mixed,),
        (build.weight("delta.norm"),),
        eps=mixer.norm_eps,
        group=mixer.v_dim,
        gate_first=False,
        activation=mixer.gate_activation,
    )
    build.linears(mixed, {target: "delta.o"})


def lower_linear_attention(build: Build, mixer: LinearAttention, source: str, target: str) -> None:
    """The delta rule without its correction, under decays that are fixed."""
    width = mixer.width
    qkv = build.buffer("linear", 3 * width)
    views = {
        name: build.view(f"linear.{name}", qkv, place * width, width) for place, name in enumerate(("q", "k", "v"))
    }
    gate, mixed = build.buffer("linear_gate", width), build.buffer("linear_mixed", width)
    build.linears(source, {**{view: f"linear.{name}" for name, view in views.items()}, gate: "linear.gate"})
    build.op("gate", (qkv, qkv), (qkv,), activation="sigmoid")  # silu: x * sigmoid(x)
    build.op(
        "delta_rule",
        (views["q"], views["k"], views["v"]),
        (mixed,),
        state=build.state(mixer.heads * mixer.head_dim * mixer.head_dim),
        key_heads=mixer.heads,
        heads=mixer.heads,
        k_dim=mixer.head_dim,
        v_dim=mixer.head_dim,
        scale=1.0,
        slope=mixer.slope,
    )
    build.op(
        "gated_norm",
        (mixed, gate),
        (mixed,),
        (build.weight("linear.norm"),),
        eps=mixer.norm_eps,
        group=width,
        gate_first=False,
        activation="sigmoid",
    )
    build.linears(mixed, {target: "linear.o"})


def conv(build: Build, buffer: str, key: str, bias: str, channels: int, kernel: int, activation: str) -> None:
    """A causal convolution of every channel by itself, in place. `bias` is the key of its bias, or ""."""
    build.op(
        "conv",
        (buffer,),
        (buffer,),
        (build.weight(key), build.weight(bias) if bias else ""),
        state=build.state(channels * (kernel - 1)),
        channels=channels,
        kernel=kernel,
        activation=activation,
    )
