"""Lowering of feed-forward parts: dense ones, and routed experts with what stands beside them."""

from __future__ import annotations

from engine.program.ir import Attr
from engine.program.lowering.build import Build
from engine.spec.schema import Activation, Dense, Moe, Router, Shared


def lower_dense(build: Build, part: Dense, source: str, target: str, keys: str = "ffn") -> None:
    """Writes `down(act(gate(x), up(x)))` of the weights under `keys`, or `down(act(up(x)))`, to `target`."""
    width, activation, bias = part.width, part.activation, part.bias
    biases = {f"{keys}.{name}": bias for name in ("gate", "up", "down")}
    if activation.is_gated:
        hidden, up = build.buffer("gate", width), build.buffer("up", width)
        build.linears(source, {hidden: f"{keys}.gate", up: f"{keys}.up"}, biases)
        build.op("glu", (hidden, up), (hidden,), **_activation(activation))
    else:
        hidden = build.buffer("up", width)
        build.linears(source, {hidden: f"{keys}.up"}, biases)
        build.op("relu2", (hidden,), (hidden,))
    build.linears(hidden, {target: f"{keys}.down"}, biases)


def lower_moe(build: Build, moe: Moe, source: str, target: str) -> None:
    router = moe.router
    scores = build.buffer("router_logits", moe.experts.count)
    ids = build.buffer("expert_ids", router.top_k, dtype="i32")
    weights = build.buffer("expert_weights", router.top_k)
    build.linears(source, {scores: "router"}, {"router": router.linear_bias})
    bias = build.weight("router_choice_bias") if router.choice_bias else ""
    table = (build.weight("router_by_token"),) if router.by_token else ()
    build.op("route", (scores,), (ids, weights), (bias, *table), **_route(router))
    seen, made = source, target
    if moe.latent:
        seen, made = build.buffer("latent", moe.latent), build.buffer("latent_part", moe.latent)
        build.linears(source, {seen: "latent_in"})
    attrs = {"layer": build.moe_layers, **_activation(moe.experts.activation)}
    if moe.scaled_input:
        scaled = build.buffer("scaled", build.buffers[seen].width)
        build.op("gate", (seen, weights), (scaled,), activation="none")
        build.op("experts", (scaled, ids), (made,), **attrs)
    else:
        build.op("experts", (seen, ids, weights), (made,), **attrs)
    build.moe_layers += 1
    if moe.latent:
        build.linears(made, {target: "latent_out"})
    if moe.shared is not None:
        _shared_experts(build, moe.shared, moe.experts.activation, source, target)


def _shared_experts(build: Build, shared: Shared, activation: Activation, source: str, target: str) -> None:
    out = build.buffer("shared", build.spec.hidden_size)
    lower_dense(build, Dense(shared.width, activation), source, out, "shared")
    if shared.gated:
        gate = build.buffer("shared_gate", 1)
        build.linears(source, {gate: "shared.sigmoid_gate"})
        build.op("sigmoid_gate", (out, gate), (out,))
    build.op("add", (target, out), (target,), scale=1.0)


def _activation(activation: Activation) -> dict[str, Attr]:
    return {"activation": activation.name, "alpha": activation.alpha, "limit": activation.limit}


def _route(router: Router) -> dict[str, Attr]:
    return {
        "top_k": router.top_k,
        "scoring": router.scoring,
        "groups": router.groups,
        "top_groups": router.top_groups,
        "group_top": router.group_top,
        "normalize": router.normalize,
        "scale": router.scale,
    }
