"""Reading of layers that attend to a window and to compressed entries, and of what goes with them."""

from __future__ import annotations

from dataclasses import replace

from engine.base.errors import UnsupportedError
from engine.spec.check import require_positive
from engine.spec.compressed import CompressedAttention, Compression, EntryIndexer
from engine.spec.families.attention_rules import SLIDING, CompressedRule, RopeRule
from engine.spec.families.config import Config
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.layer_lists import OTHER_MODEL, miscounted_layers, undefined_layer
from engine.spec.families.positions import read_rope, rope_parameters
from engine.spec.families.record import StreamsRule
from engine.spec.rope import Rope
from engine.spec.streams import Streams

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
TYPE_OF_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}
BY_TOKEN, CHOSEN = "hash_moe", "moe"


def compressed_mixers(rule: CompressedRule, config: Config, count: int) -> list[CompressedAttention]:
    """The attention of every layer: a window alone, or entries beyond it, of which an indexer may choose."""
    types = _types(rule, config, count)
    made = {name: _mixer(rule, config, name) for name in set(types)}
    return [made[name] for name in types]


def layers_by_token(rule: MoeRule, config: Config, count: int) -> list[bool]:
    """For every layer whether a table says which experts a token goes to."""
    types = config.texts(rule.by_token_types)
    if not types:
        first = config.integer(rule.by_token)
        return [layer < first for layer in range(count)]
    for name in types:
        if name not in (BY_TOKEN, CHOSEN):
            raise undefined_layer(name, config)
    if len(types) != count:
        raise miscounted_layers(len(types), count, config)
    return [name == BY_TOKEN for name in types]


def read_streams(rule: StreamsRule, config: Config) -> Streams:
    iterations = config.integer(rule.iterations)
    return Streams(config.integer(rule.count), iterations, config.number(rule.eps), rule.weighed_at_the_end)


def _types(rule: CompressedRule, config: Config, count: int) -> list[str]:
    """What each layer sees, by name or by how many tokens an entry stands for; without a list, every entry in turn with
    a choice of them, the first two layers the former."""
    types = config.texts(rule.types)
    ratios = config.integers(rule.ratios)
    if not types and ratios:
        for ratio in ratios:
            if ratio not in TYPE_OF_RATIO:
                raise undefined_layer(str(ratio), config)
        types = tuple(TYPE_OF_RATIO[ratio] for ratio in ratios)
    if not types:
        types = tuple(SPARSE if layer >= 2 and layer % 2 else HEAVY for layer in range(count))
    for name in types:
        if name not in TYPE_OF_RATIO.values():
            raise undefined_layer(name, config)
    if len(types) < count:
        raise miscounted_layers(len(types), count, config)
    return list(types[:count])  # what is beyond belongs to layers that guess further tokens


def _mixer(rule: CompressedRule, config: Config, name: str) -> CompressedAttention:
    head_dim = config.integer(rule.head_dim)
    require_positive(head_dim=head_dim)
    return CompressedAttention(
        heads=config.integer(rule.heads),
        head_dim=head_dim,
        q_lora_rank=config.integer(rule.q_lora_rank),
        out_groups=config.integer(rule.out_groups),
        out_rank=config.integer(rule.out_rank),
        window=config.integer(rule.window),
        scale=head_dim**-0.5,
        rope=_rope(rule, config, head_dim, "main" if name == SLIDING else "compress"),
        norm_eps=config.number(rule.norm_eps),
        compression=_compression(rule, config, name),
    )


def _compression(rule: CompressedRule, config: Config, name: str) -> Compression | None:
    if name == SLIDING:
        return None
    if name == HEAVY:
        return Compression(config.integer(rule.heavy_rate))
    indexer = EntryIndexer(
        config.integer(rule.index_heads), config.integer(rule.index_head_dim), config.integer(rule.index_top_k)
    )
    return Compression(config.integer(rule.sparse_rate), overlap=True, indexer=indexer)


def _rope(rule: CompressedRule, config: Config, head_dim: int, kind: str) -> Rope:
    """Positions of layers of a window, "main", or of those with entries, "compress", which alone may be scaled."""
    parameters = rope_parameters(config)
    if any(isinstance(value, dict) for value in parameters.data.values()):
        own = dict(parameters.inner(kind).data)
    elif kind == "main":
        own = {"rope_theta": config.number(rule.theta)}
    else:
        own = {"attention_factor": 1.0, **parameters.data, "rope_theta": config.number(rule.compress_theta)}
    share = own.pop("partial_rotary_factor", None)
    if share is not None:
        dim = int(head_dim * config.number(share))
    else:
        dim = config.integer(rule.rope_dim) or int(head_dim * config.number(rule.rope_share))
    if dim <= 0 or dim % 2:
        raise UnsupportedError(f"{config.where} rotates {dim} values of a head, not an even number.", OTHER_MODEL)
    plain = {
        name: value for name, value in config.data.items() if name not in ("rope_scaling", "partial_rotary_factor")
    }
    whole = replace(config, data={**plain, "rope_parameters": own})
    return replace(read_rope(whole, RopeRule(pairs=True), head_dim), dim=dim)
