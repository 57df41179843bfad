"""Indexers as config.json describes them: which layers have one, and which see what another one chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine.base.errors import UnsupportedError
from engine.spec.check import require_positive
from engine.spec.families.config import Config, Key
from engine.spec.families.layer_lists import OTHER_MODEL, layer_names, miscounted_layers, undefined_layer
from engine.spec.indexer import Indexer
from engine.spec.rope import Rope

Indexed = Literal["own", "shared", "none"]
NOT_SAID = Key((), ())


@dataclass(frozen=True)
class IndexRule:
    """The indexer of a family's layers; `norm` and `weighted` are as those of `engine.spec.indexer.Indexer`.

    Its rope is that of attention; `pairs` says which values it rotates together. A list `types`, or a string or list
    `pattern`, names what each layer has, with a name, a letter or the place of one in `meanings`. Without either every
    layer has its own, or, where `every` is more than one, all but the first `offset` - 1 share that of the last layer
    that has its own: each `every`th. 0: no layer has any. With `pool` so many tokens are chosen together, and
    `top_k` counts tokens.
    """

    top_k: Key
    heads: Key
    head_dim: Key
    norm_eps: Key | float
    pairs: Key | bool = False
    norm: str = "layer"
    weighted: bool = True
    block: Key | int = 1
    local: Key | int = 0
    types: Key = NOT_SAID
    pattern: Key = NOT_SAID
    meanings: Mapping[str, Indexed] | None = None
    every: Key | int = 1
    offset: Key | int = 0
    pool: Key | None = None


def read_indexer(rule: IndexRule, config: Config, rope: Rope | None) -> Indexer:
    """The indexer of a layer that has its own, where attention rotates by `rope`."""
    pool = 1 if rule.pool is None else config.integer(rule.pool)
    require_positive(index_kpool=pool)
    return Indexer(
        top_k=config.integer(rule.top_k) // pool,
        heads=config.integer(rule.heads),
        head_dim=config.integer(rule.head_dim),
        rope=None if rope is None else replace(rope, pairs=config.flag(rule.pairs)),
        norm_eps=config.number(rule.norm_eps),
        norm=rule.norm,
        weighted=rule.weighted,
        block=config.integer(rule.block) * pool,
        local=config.integer(rule.local),
        pooled=rule.pool is not None,
    )


def indexed_layers(rule: IndexRule, config: Config, count: int) -> list[Indexed]:
    """What each layer has. UnsupportedError for a layer that shares what no layer before it chose."""
    meanings = rule.meanings or {}
    named = layer_names(rule.types, tuple(meanings), config) or _letters(config, rule.pattern)
    layers = _named(meanings, named, config, count) if named else _scheduled(rule, config, count)
    chosen = False
    for indexed in layers:
        if indexed == "shared" and not chosen:
            message = f"{config.where} has a layer that shares a selection before any layer has chosen one."
            raise UnsupportedError(message, OTHER_MODEL)
        chosen = chosen or indexed == "own"
    return layers


def _letters(config: Config, pattern: Key) -> tuple[str, ...]:
    value = config.raw(pattern)
    return tuple(value) if isinstance(value, str) else config.texts(pattern)


def _named(meanings: Mapping[str, Indexed], names: tuple[str, ...], config: Config, count: int) -> list[Indexed]:
    if len(names) != count:
        raise miscounted_layers(len(names), count, config)
    for name in names:
        if name not in meanings:
            raise undefined_layer(name, config)
    return [meanings[name] for name in names]


def _scheduled(rule: IndexRule, config: Config, count: int) -> list[Indexed]:
    if rule.every == 0:
        return ["none"] * count
    every, offset = max(1, config.integer(rule.every)), config.integer(rule.offset)
    return ["shared" if max(0, layer - offset + 1) % every else "own" for layer in range(count)]
