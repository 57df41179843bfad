"""From rules of experts and a config.json to the feed-forward parts of layers."""

from __future__ import annotations

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.check import require, require_positive
from engine.spec.families.config import Config, Key, is_on
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.layer_lists import OTHER_MODEL, layer_names, without_next_token
from engine.spec.families.record import Family
from engine.spec.families.recurrent import offset_of
from engine.spec.feed_forward import Activation, Dense, Experts, Moe, Router, Shared

DENSE, SPARSE = "dense", "sparse"
COMBINATIONS = {"sum": 1.0, "average": 0.5}


def layers_with_experts(rule: MoeRule | None, config: Config, count: int) -> list[bool]:
    """For every layer whether it has routed experts."""
    if rule is None or not config.flag(rule.enabled) or config.integer(rule.count) < rule.fewest:
        return [False] * count
    types = without_next_token(layer_names(rule.types, (DENSE, SPARSE), config), config, count)
    if types:
        known = len(types) == count and set(types) <= {DENSE, SPARSE}
        require(known, f"{config.where} must call each of {count} layers {DENSE} or {SPARSE}, not {shortened(types)}")
        return [name == SPARSE for name in types]
    numbers = config.integers(rule.layers)
    if numbers:
        return [layer in numbers for layer in range(count)]
    first, step = config.integer(rule.first_dense), config.integer(rule.step)
    require_positive(decoder_sparse_step=step)
    offset, dense = offset_of(rule.offset, step, config), config.integers(rule.dense_layers)
    last = config.integer(rule.last)
    last = count - 1 if last < 0 else last
    return [first <= layer <= last and layer % step == offset and layer not in dense for layer in range(count)]


def dense_part(family: Family, config: Config) -> Dense:
    """The feed-forward part of layers without experts. UnsupportedError for a family that has none such."""
    if family.dense_width is None:
        raise UnsupportedError(f"{config.where} has layers without experts, which this family does not do.")
    activation, bias = _activation(family, config), config.flag(family.dense_bias)
    activation = _capped(activation, family.moe.shared_cap, config) if family.moe else activation
    return Dense(config.integer(family.dense_width), activation, bias)


def expert_part(family: Family, config: Config) -> Moe:
    """The router, the experts and what stands beside them."""
    rule, activation = family.moe, _activation(family, config)
    assert rule is not None, f"{family.name} has no experts"
    capped, width = _capped(activation, rule.cap, config), config.integer(rule.width)
    shared_activation = _capped(activation, rule.shared_cap, config)
    shared = _shared(rule, config, None if shared_activation == capped else shared_activation)
    return Moe(
        _router(rule, config),
        Experts(config.integer(rule.count), width, capped, rule.expert_bias),
        shared,
        config.integer(rule.latent),
        rule.scaled_input,
        rule.apart,
        config.integer(rule.zero),
        bias=rule.bias,
        normed=rule.output_normed,
    )


def _activation(family: Family, config: Config) -> Activation:
    clamped = family.moe.clamped if family.moe else None
    if clamped is not None:
        return Activation("clamped_silu", config.number(clamped.alpha), config.number(clamped.limit))
    limit = config.number(family.moe.limit) if family.moe else 0.0
    if limit:
        return Activation("limited_silu", limit=limit)
    return Activation(family.activations[config.text(family.hidden_act)])


def _capped(activation: Activation, cap: Key | float, config: Config) -> Activation:
    limit = config.number(cap)
    return Activation("capped_silu", limit=limit) if limit else activation


def _router(rule: MoeRule, config: Config) -> Router:
    groups = top_groups = group_top = 1
    chosen = rule.groups
    if chosen is not None and is_on(chosen.when, config):
        groups, top_groups = config.integer(chosen.groups), config.integer(chosen.top_groups)
        group_top = chosen.group_top if groups > 1 else 1
    scoring = _scoring(rule, config)
    shares = _shared_share(rule, config)
    return Router(
        top_k=config.integer(rule.top_k),
        scoring=scoring,
        groups=groups,
        top_groups=top_groups,
        group_top=group_top,
        normalize=config.is_set(rule.normalize) and scoring != "softmax_topk",
        scale=config.number(rule.scale) * shares,
        jitter=config.number(rule.jitter),
        linear_bias=rule.linear_bias,
        normed=rule.normed,
        expert_scale=rule.expert_scale,
        choice_bias=config.flag(rule.choice_bias),
    )


def _shared(rule: MoeRule, config: Config, activation: Activation | None) -> Shared | None:
    if rule.shared is None:
        return None
    width = config.integer(rule.shared.width) * config.integer(rule.shared.count)
    return Shared(width, rule.shared.gated, _shared_share(rule, config), activation) if width else None


def _shared_share(rule: MoeRule, config: Config) -> float:
    """What the outputs of routed and of shared experts are multiplied by before they are added."""
    shared = rule.shared
    if shared is None or not config.integer(shared.count):
        return 1.0
    combination = config.text(shared.combination)
    require(combination in COMBINATIONS, f"{config.where} cannot combine experts by {combination}")
    return COMBINATIONS[combination]


def _scoring(rule: MoeRule, config: Config) -> str:
    name = config.text(rule.scoring)
    if not rule.scorings:
        return name
    if name not in rule.scorings:
        raise UnsupportedError(f"{config.where} asks for expert scores by {shortened(name)}.", OTHER_MODEL)
    return rule.scorings[name]
