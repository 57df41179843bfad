"""Lowering of feed-forward parts: dense ones, and routed experts with what stands beside them."""

from __future__ import annotations

from engine.program.ir import Attr
from engine.program.lowering.build import RESIDUAL, Build
from engine.spec.feed_forward import Activation, Dense, Moe, Router, Shared

DEFERRED = "deferred"  # what routed experts add to the residual stream behind the next layer


def lower_dense(build: Build, part: Dense, source: str, target: str, keys: str = "ffn") -> None:
    """Writes `down(act(gate(x), up(x)))` of the weights under `keys`, or `down(act(up(x)))`, to `target`."""
    width, activation, bias = part.width, part.activation, part.bias
    biases = {f"{keys}.{name}": bias for name in ("gate", "up", "down")}
    if activation.is_gated:
        hidden, up = build.buffer("gate", width), build.buffer("up", width)
        build.linears(source, {hidden: f"{keys}.gate", up: f"{keys}.up"}, biases)
        build.op("glu", (hidden, up), (hidden,), **activation_attrs(activation))
    else:
        hidden = build.buffer("up", width)
        build.linears(source, {hidden: f"{keys}.up"}, biases)
        build.op("relu2", (hidden,), (hidden,))
    build.linears(hidden, {target: f"{keys}.down"}, biases)


def lower_moe(build: Build, moe: Moe, source: str, target: str) -> None:
    ids, weights = _choice(build, moe, source)
    routed = build.buffer(DEFERRED, build.spec.hidden_size) if moe.deferred else target
    seen, made = source, routed
    if moe.apart:
        seen = build.buffer("experts_input", build.spec.hidden_size)
        build.stream_norm(RESIDUAL, seen, "experts_norm")
    if moe.latent:
        whole, seen, made = seen, build.buffer("latent", moe.latent), build.buffer("latent_part", moe.latent)
        build.linears(whole, {seen: "latent_in"})
    attrs = {"layer": build.moe_layers, "experts": moe.experts.count, **activation_attrs(moe.experts.activation)}
    if moe.scaled_input:
        scaled = build.buffer("scaled", build.buffers[seen].width)
        build.op("gate", (seen, weights), (scaled,), activation="none")
        build.op("experts", (scaled, ids), (made,), **attrs)
    else:
        build.op("experts", (seen, ids, weights), (made,), **attrs)
    build.moe_layers += 1
    if moe.bias:
        build.op("add", (made,), (made,), (build.weight("experts_bias"),), scale=1.0)
    if moe.latent:
        build.linears(made, {routed: "latent_out"})
    if moe.apart:
        build.stream_norm(routed, routed, "experts_post_norm")
    if moe.shared is not None:
        shared = target if moe.deferred else build.buffer("shared", build.spec.hidden_size)
        _shared_experts(build, moe, moe.shared, source, shared)
        if not moe.deferred:
            build.op("add", (target, shared), (target,), scale=moe.shared.scale)
        elif moe.shared.scale != 1.0:
            build.op("scale", (target,), (target,), ("",), by=moe.shared.scale)
    if moe.normed:
        build.stream_norm(target, target, "experts_shared_norm")


def _choice(build: Build, moe: Moe, source: str) -> tuple[str, str]:
    """The buffers of the chosen experts and their weights."""
    router, seen, scale = moe.router, source, 1.0
    scores = build.buffer("router_logits", moe.choices)
    ids = build.buffer("expert_ids", router.top_k, dtype="i32")
    weights = build.buffer("expert_weights", router.top_k)
    if router.normed:
        seen, scale = build.buffer("router_input", build.spec.hidden_size), build.spec.hidden_size**-0.5
        build.norm(RESIDUAL, seen, "router_norm")
    build.linears(seen, {scores: "router"}, {"router": router.linear_bias}, scale)
    bias = build.weight("router_choice_bias") if router.choice_bias else ""
    table = build.weight("router_by_token") if router.by_token else ""
    scales = (build.weight("router_expert_scale"),) if router.expert_scale else ()
    build.op("route", (scores,), (ids, weights), (bias, table, *scales), **_route(router))
    return ids, weights


def _shared_experts(build: Build, moe: Moe, shared: Shared, source: str, target: str) -> None:
    lower_dense(build, Dense(shared.width, moe.shared_activation), source, target, "shared")
    if moe.apart:
        build.stream_norm(target, target, "shared_post_norm")
    if shared.gated:
        gate = build.buffer("shared_gate", 1)
        build.linears(source, {gate: "shared.sigmoid_gate"})
        build.op("sigmoid_gate", (target, gate), (target,))


def activation_attrs(activation: Activation) -> dict[str, Attr]:
    """An activation as attributes of an operation."""
    return {"activation": activation.name, "alpha": activation.alpha, "limit": activation.limit}


def _route(router: Router) -> dict[str, Attr]:
    jitter: dict[str, Attr] = {"jitter": router.jitter} if router.scoring == "sparse_mixer" else {}
    return {
        **jitter,
        "top_k": router.top_k,
        "scoring": router.scoring,
        "groups": router.groups,
        "top_groups": router.top_groups,
        "group_top": router.group_top,
        "normalize": router.normalize,
        "scale": router.scale,
    }
