"""From rules of attention and a config.json to the mixers of layers."""

from __future__ import annotations

import math
from dataclasses import replace

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.attention import Attention, LatentAttention, QueryExperts
from engine.spec.check import require, require_positive
from engine.spec.families.attention_rules import (
    FULL,
    LAYER_TYPES,
    SLIDING,
    SLIDING_ALL,
    SLIDING_LATE,
    SLIDING_LISTED,
    SLIDING_MOST,
    AttentionRule,
    CompressedRule,
    GrowthRule,
    LatentRule,
    QueryExpertsRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import REMEDY, Config, is_on, key
from engine.spec.families.indexers import read_indexer
from engine.spec.families.layer_lists import OTHER_MODEL, miscounted_layers, undefined_layer, without_next_token
from engine.spec.families.positions import has_null_theta, read_rope, yarn_score_scale
from engine.spec.families.record import HIDDEN
from engine.spec.rope import Growth, Rope

MixerRule = AttentionRule | LatentRule | CompressedRule


def windows_of(rule: MixerRule, config: Config, count: int) -> list[int]:
    """For every layer the width of its attention window, 0 where it sees everything."""
    window = rule.window if isinstance(rule, AttentionRule) else None
    windows = _windows_as_told(window, config, count)
    return [*windows[:-1], 0] if window is not None and window.ends_full else windows


def _windows_as_told(window: WindowRule | None, config: Config, count: int) -> list[int]:
    size = _window(window, config) if window and config.flag(window.enabled) else 0
    types = without_next_token(config.texts(LAYER_TYPES), config, count)
    if window is not None and config.integers(window.marked):
        return _marked_windows(window, types, size, config, count)
    if types:
        return _typed_windows(types, window, size, config, count)
    if window is None or window.layers == SLIDING_ALL:
        return [size] * count
    if window.layers == SLIDING_LISTED:
        raise CorruptFileError(f"{config.where} lacks layer_types.", REMEDY)
    if window.layers == SLIDING_LATE:
        first = config.integer(key("max_window_layers", default=0)) if size else count
        return [size if layer >= first else 0 for layer in range(count)]
    if window.layers == SLIDING_MOST:
        interval = config.integer(window.interval)
        require_positive(sliding_window_pattern=interval)
        first = config.integer(window.first)
        return [size if layer >= first and (layer - first + 1) % interval else 0 for layer in range(count)]
    return [size if layer % 2 == 0 else 0 for layer in range(count)]


def _window(rule: WindowRule, config: Config) -> int:
    before = config.integer(rule.before)
    return before + 1 if before else config.integer(rule.size)


def _marked_windows(rule: WindowRule, types: tuple[str, ...], size: int, config: Config, count: int) -> list[int]:
    marks = config.integers(rule.marked)[:count]
    if len(marks) != count:
        raise miscounted_layers(len(marks), count, config)
    name = rule.name if config.has(rule.size) else FULL
    if types and types != tuple(name if mark else FULL for mark in marks):
        raise UnsupportedError(f"{config.where} has layer_types that go against {rule.marked.names[0]}.", OTHER_MODEL)
    return [size if mark else 0 for mark in marks]


def _typed_windows(types: tuple[str, ...], rule: WindowRule | None, size: int, config: Config, count: int) -> list[int]:
    for name in types:
        if name not in (SLIDING, FULL) or (name == SLIDING and not size):
            raise undefined_layer(name, config)
    windows = [size if name == SLIDING else 0 for name in types]
    if len(windows) != count:
        raise miscounted_layers(len(windows), count, config)
    if (rule is None or not rule.typed) and windows != [size] * count:
        raise UnsupportedError(f"{config.where} mixes layer_types, which this family does not do.", OTHER_MODEL)
    return windows


def attention_mixer(rule: MixerRule, config: Config, window: int) -> Attention | LatentAttention:
    """What a rule makes of config.json, for layers with a window of that many tokens (0: they see everything)."""
    match rule:
        case AttentionRule():
            return _attention(rule, config, window)
        case LatentRule():
            return _latent_attention(rule, config)
        case CompressedRule():
            raise AssertionError("layers with compressed entries are made together")


def _attention(rule: AttentionRule, config: Config, window: int) -> Attention:
    experts = _query_experts(rule.experts, config)
    heads = config.integer(rule.heads) or (experts.top_k * config.integer(rule.kv_heads) if experts else 0)
    require_positive(num_attention_heads=heads)
    head_dim = config.integer(rule.head_dim) or config.integer(HIDDEN) // heads
    require_positive(head_dim=head_dim)
    qkv_bias = config.flag(rule.qkv_bias)
    chunked = rule.window is not None and rule.window.chunked
    rope = _rope(rule.rope, config, head_dim)
    return Attention(
        heads=heads,
        kv_heads=config.integer(rule.kv_heads) or heads,
        head_dim=head_dim,
        scale=_score_scale(rule, config, head_dim),
        rope=rope,
        qk_norm=rule.qk_norm if config.flag(rule.normed) else "none",
        q_bias=qkv_bias,
        k_bias=qkv_bias,
        v_bias=qkv_bias,
        o_bias=config.flag(rule.o_bias),
        sinks=config.flag(rule.sinks),
        window=0 if chunked else window,
        chunk=window if chunked else 0,
        gated=rule.gated,
        head_gates=config.raw(rule.head_gates) in (True, "per-head"),
        gate_activation=rule.gate_activation,
        v_dim=config.integer(rule.v_dim),
        value_scale=config.number(rule.value_scale),
        softcap=config.number(rule.softcap),
        clip=config.number(rule.clip),
        growth=_growth(rule.growth, config),
        indexer=None if rule.index is None else read_indexer(rule.index, config, rope),
        v_norm=rule.v_norm,
        v_from_k=config.flag(rule.v_from_k),
        experts=experts,
    )


def _query_experts(rule: QueryExpertsRule | None, config: Config) -> QueryExperts | None:
    return None if rule is None else QueryExperts(config.integer(rule.count), config.integer(rule.top_k))


def _growth(rule: GrowthRule | None, config: Config) -> Growth | None:
    if rule is None or not config.is_set(rule.enabled):
        return None
    return Growth(config.number(rule.rate), config.integer(rule.every), rule.ahead)


def _score_scale(rule: AttentionRule, config: Config, head_dim: int) -> float:
    if rule.scale is not None:
        return config.number(rule.scale)
    width = float(head_dim) if rule.score_width is None else config.number(rule.score_width)
    require_positive(width_that_scores_are_divided_by=width)
    return float(width**-0.5)


def _latent_attention(rule: LatentRule, config: Config) -> LatentAttention:
    nope_dim, rope_dim = config.integer(rule.nope_dim), config.integer(rule.rope_dim)
    require_positive(qk_nope_head_dim=nope_dim, **({} if rule.rope is None else {"qk_rope_head_dim": rope_dim}))
    rope = _rope(rule.rope, config, rope_dim)
    q_lora_rank, kv_lora_rank = config.integer(rule.q_lora_rank), config.integer(rule.kv_lora_rank)
    q_scale = latent_scale = 1.0
    if rule.scaled_latents:
        require_positive(q_lora_rank=q_lora_rank, kv_lora_rank=kv_lora_rank)
        q_scale, latent_scale = (math.sqrt(config.integer(HIDDEN) / rank) for rank in (q_lora_rank, kv_lora_rank))
    return LatentAttention(
        heads=config.integer(rule.heads),
        q_lora_rank=q_lora_rank,
        kv_lora_rank=kv_lora_rank,
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        v_dim=config.integer(rule.v_dim),
        scale=(nope_dim + rope_dim) ** -0.5 * yarn_score_scale(config) * q_scale,
        rope=rope,
        norm_eps=config.number(rule.norm_eps),
        bias=config.flag(rule.bias),
        gated=rule.gated,
        indexer=None if rule.index is None else read_indexer(rule.index, config, rope),
        latent_scale=latent_scale,
        growth=_growth(rule.growth, config),
    )


def _rope(rule: RopeRule | None, config: Config, head_dim: int) -> Rope | None:
    if rule is None or not is_on(rule.when, config) or (rule.nullable and has_null_theta(config)):
        return None
    rope = read_rope(config, rule, head_dim)
    if not config.has(rule.by_layer):
        return rope
    thetas = config.numbers(rule.by_layer)
    require(config.layer < len(thetas), f"{config.where} has a theta for {len(thetas)} layers alone")
    return replace(rope, theta=thetas[config.layer]) if thetas[config.layer] else None
