"""Lowering of state spaces and of convolutions between gates."""

from __future__ import annotations

from engine.program.lowering.build import Build
from engine.program.lowering.delta import conv
from engine.spec.recurrent import Mamba, Mamba2, ShortConv


def lower_mamba(build: Build, mixer: Mamba, source: str, target: str) -> None:
    """Every channel is a head of one value; all share the state's input and output."""
    channels = mixer.channels
    x, gate = build.buffer("mamba", channels), build.buffer("mamba_gate", channels)
    step_a, step = build.buffer("mamba_step_a", mixer.step_rank), build.buffer("mamba_step", channels)
    b, c = build.buffer("mamba_b", mixer.state_dim), build.buffer("mamba_c", mixer.state_dim)
    mixed = build.buffer("mamba_mixed", channels)
    biases = dict.fromkeys(("mamba.in", "mamba.gate", "mamba.o"), mixer.bias)
    build.linears(source, {x: "mamba.in", gate: "mamba.gate"}, biases)
    conv(build, x, "mamba.conv", "mamba.conv_bias" if mixer.conv_bias else "", channels, mixer.kernel, "silu")
    build.linears(x, {step_a: "mamba.step_a", b: "mamba.b", c: "mamba.c"})
    for buffer, key in ((step_a, "mamba.step_norm"), (b, "mamba.b_norm"), (c, "mamba.c_norm")):
        build.norm(buffer, buffer, key, eps=mixer.norm_eps)
    build.linears(step_a, {step: "mamba.step"})
    _ssm(build, (x, step, b, c), mixed, heads=channels, head_dim=1, groups=1, state_dim=mixer.state_dim)
    build.op("gate", (mixed, gate), (mixed,), activation="silu")
    build.linears(mixed, {target: "mamba.o"}, biases)


def lower_mamba2(build: Build, mixer: Mamba2, source: str, target: str) -> None:
    """What the convolution passes over lies in one buffer: the heads' values, then the states' inputs and outputs."""
    states = mixer.groups * mixer.state_dim
    seen = build.buffer("mamba", mixer.conv_width)
    x = build.view("mamba.x", seen, 0, mixer.width)
    b = build.view("mamba.b", seen, mixer.width, states)
    c = build.view("mamba.c", seen, mixer.width + states, states)
    gate, step = build.buffer("mamba_gate", mixer.width), build.buffer("mamba_step", mixer.heads)
    mixed = build.buffer("mamba_mixed", mixer.width)
    biases = dict.fromkeys(("mamba.gate", "mamba.in", "mamba.step", "mamba.o"), mixer.bias)
    build.linears(source, {gate: "mamba.gate", seen: "mamba.in", step: "mamba.step"}, biases)
    conv_bias = "mamba.conv_bias" if mixer.conv_bias else ""
    conv(build, seen, "mamba.conv", conv_bias, mixer.conv_width, mixer.kernel, "silu")
    _ssm(
        build,
        (x, step, b, c),
        mixed,
        heads=mixer.heads,
        head_dim=mixer.head_dim,
        groups=mixer.groups,
        state_dim=mixer.state_dim,
        bounds=(mixer.step_min, mixer.step_max),
    )
    build.op(
        "gated_norm",
        (mixed, gate),
        (mixed,),
        (build.weight("mamba.norm"),),
        eps=mixer.norm_eps,
        group=mixer.width // mixer.groups,
        gate_first=True,
        activation="silu",
    )
    build.linears(mixed, {target: "mamba.o"}, biases)


def lower_short_conv(build: Build, mixer: ShortConv, source: str, target: str) -> None:
    """out = C * conv(B * x)."""
    hidden = build.spec.hidden_size
    before, after, x = (build.buffer(f"conv_{name}", hidden) for name in ("before", "after", "x"))
    biases = dict.fromkeys(("conv.before", "conv.after", "conv.x", "conv.o"), mixer.bias)
    build.linears(source, {before: "conv.before", after: "conv.after", x: "conv.x"}, biases)
    build.op("gate", (x, before), (x,), activation="none")
    conv(build, x, "conv.w", "conv.w_bias" if mixer.bias else "", hidden, mixer.kernel, "none")
    build.op("gate", (x, after), (x,), activation="none")
    build.linears(x, {target: "conv.o"}, biases)


def _ssm(
    build: Build,
    reads: tuple[str, str, str, str],
    target: str,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state_dim: int,
    bounds: tuple[float, float] = (0.0, 0.0),
) -> None:
    """`reads` are the heads' values, their time steps, the inputs and the outputs of the states."""
    build.op(
        "ssm",
        reads,
        (target,),
        tuple(build.weight(f"mamba.{name}") for name in ("a_log", "d", "dt_bias")),
        state=build.state(heads * head_dim * state_dim),
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state_dim=state_dim,
        dt_min=bounds[0],
        dt_max=bounds[1],
    )
