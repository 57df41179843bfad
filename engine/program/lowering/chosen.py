"""Lowering of queries and outputs by matrices that a router chooses.

Attention wants the heads that share a key next to each other; a chosen matrix makes one for every key.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.program.lowering.build import Build
from engine.spec.attention import Attention, QueryExperts

SCORES = "query_scores"


@dataclass(frozen=True)
class Choice:
    """The buffers of the chosen matrices' numbers and weights, of `top_k` out of `count`."""

    ids: str
    weights: str
    count: int
    top_k: int


def query_scores(build: Build, experts: QueryExperts | None) -> dict[str, str]:
    """The buffer of a router's scores, and the key of the matrix that makes them."""
    return {} if experts is None else {build.buffer(SCORES, experts.count): "attn.router"}


def chosen_queries(build: Build, mixer: Attention, experts: QueryExperts, source: str, target: str) -> Choice:
    """Writes the queries of the chosen matrices to `target`."""
    (scores,) = query_scores(build, experts)
    ids = build.buffer("query_ids", experts.top_k, dtype="i32")
    weights = build.buffer("query_weights", experts.top_k)
    build.op(
        "route",
        (scores,),
        (ids, weights),
        ("",),
        top_k=experts.top_k,
        scoring="softmax_topk",
        groups=1,
        top_groups=1,
        group_top=1,
        normalize=False,
        scale=1.0,
        aside=True,
    )
    choice = Choice(ids, weights, experts.count, experts.top_k)
    chosen = build.buffer("chosen_q", mixer.heads * mixer.head_dim)
    _chosen_linear(build, choice, source, chosen, "attn.q")
    _turn(build, chosen, target, mixer.kv_heads, mixer.head_dim, choice.top_k, to_keys=True)
    return choice


def chosen_output(build: Build, mixer: Attention, choice: Choice, mixed: str, target: str) -> None:
    """Writes the sum of what the chosen matrices make of their own heads, weighed, to `target`."""
    hidden = build.spec.hidden_size
    chosen = build.buffer("chosen_mixed", mixer.heads * mixer.value_dim)
    _turn(build, mixed, chosen, mixer.kv_heads, mixer.value_dim, choice.top_k, to_keys=False)
    build.op("gate", (chosen, choice.weights), (chosen,), activation="none")
    outputs = build.buffer("chosen_outputs", choice.top_k * hidden)
    first, *others = (build.view(f"{outputs}.run{i}", outputs, i * hidden, hidden) for i in range(choice.top_k))
    _chosen_linear(build, choice, chosen, outputs if others else target, "attn.o")
    total = first if others else target
    for other in others:
        build.op("add", (total, other), (target,), scale=1.0)
        total = target
    if mixer.o_bias:
        build.op("add", (target,), (target,), (build.weight("attn.o_bias"),), scale=1.0)


def _chosen_linear(build: Build, choice: Choice, source: str, target: str, key: str) -> None:
    build.op("chosen_linear", (source, choice.ids), (target,), (build.weight(key),), matrices=choice.count)


def _turn(build: Build, source: str, target: str, keys: int, width: int, top_k: int, to_keys: bool) -> None:
    """From heads in the order of their matrices to the order of their keys, or back."""
    by_matrix = source if to_keys else target
    for i in range(top_k):
        run = build.view(f"{by_matrix}.run{i}", by_matrix, i * keys * width, keys * width)
        reads, writes = (run, target) if to_keys else (source, run)
        near, far = {"stride": width, "offset": 0}, {"stride": top_k * width, "offset": i * width}
        into, out = (near, far) if to_keys else (far, near)
        build.op(
            "head_copy",
            (reads,),
            (writes,),
            heads=keys,
            in_stride=into["stride"],
            in_offset=into["offset"],
            out_stride=out["stride"],
            out_offset=out["offset"],
            width=width,
        )
