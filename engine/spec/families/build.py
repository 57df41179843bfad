"""From a family's record and a config.json to a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.spec.attention import Attention, LatentAttention
from engine.spec.check import require, require_positive
from engine.spec.families.attention import attention_mixer, windows_of
from engine.spec.families.attention_rules import FULL, AttentionRule, CompressedRule, LatentRule
from engine.spec.families.compressed import compressed_mixers, layers_by_token, read_streams
from engine.spec.families.config import Config, key
from engine.spec.families.experts import dense_part, expert_part, layers_with_experts
from engine.spec.families.indexers import indexed_layers
from engine.spec.families.layer_rules import Part, SinglePartRule
from engine.spec.families.positions import context_length
from engine.spec.families.record import HIDDEN, Family, LayerInputsRule, NormRule
from engine.spec.families.recurrent import recurrent_layers, recurrent_mixer
from engine.spec.families.shared_keys import of_layer, with_shared_keys
from engine.spec.families.single_part import parts_of_layers
from engine.spec.feed_forward import Moe
from engine.spec.residual import RMS_NORM, Norm, Residual
from engine.spec.schema import MOST_LAYERS, Ffn, Layer, LayerInputs, Mixer, Spec

LAYERS = key("num_hidden_layers", "n_layers")
PAIRS = key("num_layers")
DEPTH_EPS = 1e-5  # for models of one layer, as transformers has it


def build(family: Family, config: Config) -> Spec:
    """Read a spec out of config.json.

    Raises CorruptFileError for what is missing, of a wrong type or impossible, UnsupportedError for a setting that
    this release does not implement; both name the field.
    """
    _refuse_unknown_settings(family, config)
    logit_divisor = config.number(family.logit_divisor)
    require_positive(logits_scaling=logit_divisor)
    return Spec(
        family=family.name,
        vocab_size=config.integer(key("vocab_size")),
        hidden_size=config.integer(HIDDEN),
        layers=tuple(_layers(family, config)),
        norm_eps=_norm_eps(family, config),
        context_length=context_length(config),
        tied_head=config.flag(key("tie_word_embeddings", default=False)),
        embedding_scale=config.number(family.embedding_scale)
        * (config.integer(HIDDEN) ** 0.5 if config.flag(family.embedding_root) else 1.0),
        residual_scale=config.number(family.residual_scale),
        logit_scale=config.number(family.logit_scale) / logit_divisor,
        norm=_norm(family.norm, config),
        logit_softcap=config.number(family.logit_softcap),
        layer_inputs=_layer_inputs(family.layer_inputs, config),
        head_bias=config.flag(family.head_bias),
        streams=None if family.streams is None else read_streams(family.streams, config),
        final_norm_eps=config.number(family.final_norm_eps),
    )


def _layer_inputs(rule: LayerInputsRule | None, config: Config) -> LayerInputs | None:
    width = 0 if rule is None else config.integer(rule.width)
    return LayerInputs(width, config.integer(rule.vocab_size)) if rule is not None and width else None


def _norm(rule: NormRule, config: Config) -> Norm:
    return RMS_NORM if _has_rms_eps(rule, config) else Norm(rule.kind, config.flag(rule.bias))


def _norm_eps(family: Family, config: Config) -> float:
    rule = family.norm
    return config.number(rule.rms_eps if rule.rms_eps and _has_rms_eps(rule, config) else family.norm_eps)


def _has_rms_eps(rule: NormRule, config: Config) -> bool:
    return rule.rms_eps is not None and any(config.data.get(name) is not None for name in rule.rms_eps.names)


def _refuse_unknown_settings(family: Family, config: Config) -> None:
    for name in family.hidden_act.names:
        config.only(name, tuple(family.activations))
    for name, allowed in family.only.items():
        config.only(name, allowed)


def _layers(family: Family, config: Config) -> list[Layer]:
    if family.single_part is not None:
        return _single_part_layers(family, family.single_part, config)
    if family.paired:
        return _paired_layers(family, config)
    count = config.integer(LAYERS)
    require_positive(num_hidden_layers=count, hidden_size=config.integer(HIDDEN))
    require(count <= MOST_LAYERS, f"{count} layers are more than the {MOST_LAYERS} that any model has")
    moe = layers_with_experts(family.moe, config, count)
    ffns: list[Ffn] = [
        (expert_part if is_moe else dense_part)(family, config.of_layer(layer)) for layer, is_moe in enumerate(moe)
    ]
    if family.moe is not None and any(moe):
        by_token = layers_by_token(family.moe, config, count)
        ffns = [_without_choice(ffn) if named else ffn for ffn, named in zip(ffns, by_token, strict=True)]
    mixers = _mixers(family, config, moe)
    layers = [Layer(mixer, ffn, _residual(family, config, mixer)) for mixer, ffn in zip(mixers, ffns, strict=True)]
    return layers if family.shared_keys is None else with_shared_keys(layers, family.shared_keys, config)


def _without_choice(ffn: Ffn) -> Ffn:
    """Experts that a table names by token ids."""
    if not isinstance(ffn, Moe):
        return ffn
    return replace(ffn, router=replace(ffn.router, by_token=True, choice_bias=False))


def _residual(family: Family, config: Config, mixer: Mixer | None) -> Residual:
    """How a layer with this mixer joins the residual stream."""
    attends = isinstance(mixer, Attention | LatentAttention)
    rule = family.residual if attends else family.recurrent_residual or family.residual
    if isinstance(rule, Residual):
        return rule
    keep, add = rule.attention if attends else rule.recurrent
    factors = [config.number(factor) for factor in (keep, add, *rule.ffn)]
    return Residual("normed", attn_keep=factors[0], attn_add=factors[1], ffn_keep=factors[2], ffn_add=factors[3])


def _paired_layers(family: Family, config: Config) -> list[Layer]:
    pairs = config.integer(PAIRS)
    require(0 < pairs <= MOST_LAYERS // 2, f"{config.where} counts {pairs} layers")
    mixer = attention_mixer(family.mixer, config, 0)
    return [
        Layer(mixer, replace(expert_part(family, config), deferred=True)),
        Layer(mixer, dense_part(family, config)),
    ] * pairs


def _single_part_layers(family: Family, rule: SinglePartRule, config: Config) -> list[Layer]:
    residual = _residual(family, config, None)
    make: Mapping[Part, Callable[[], Layer]] = {
        "attention": lambda: Layer(attention_mixer(family.mixer, config, 0), None, residual),
        "recurrent": lambda: Layer(_recurrent(family, config, 0.0), None, residual),
        "dense": lambda: Layer(None, dense_part(family, config), residual),
        "experts": lambda: Layer(None, expert_part(family, config), residual),
    }
    parts = parts_of_layers(rule, config)
    made = {part: make[part]() for part in set(parts)}
    return [made[part] for part in parts]


def _recurrent(family: Family, config: Config, depth: float) -> Mixer:
    assert family.recurrent is not None, f"{family.name} has no recurrent layers"
    return recurrent_mixer(family.recurrent.mixer, config, config.number(family.norm_eps), depth)


def _mixers(family: Family, config: Config, moe: list[bool]) -> list[Mixer]:
    """The mixer of every layer; `moe` says which have routed experts."""
    count = len(moe)
    if isinstance(family.mixer, CompressedRule):
        return list(compressed_mixers(family.mixer, config, count))
    if family.recurrent is None and family.mixer.index is None:
        windows = windows_of(family.mixer, config, count)
        windowed = family.windowed or family.mixer
        unrouted = family.unrouted or family.mixer
        return [
            attention_mixer(
                windowed if window else family.mixer if is_moe else unrouted, of_layer(config, layer), window
            )
            for layer, (window, is_moe) in enumerate(zip(windows, moe, strict=True))
        ]
    attending = _attending_mixers(family, config, count)
    if family.recurrent is None:
        return attending
    keep_states = recurrent_layers(family.recurrent, config, count)
    depths = [layer / (count - 1 + DEPTH_EPS) for layer in range(count)]
    return [
        _recurrent(family, config, depth) if keeps_state else attention
        for keeps_state, depth, attention in zip(keep_states, depths, attending, strict=True)
    ]


def _attending_mixers(family: Family, config: Config, count: int) -> list[Mixer]:
    """Attention that differs from layer to layer by its indexer alone, or, between recurrent layers, by its window."""
    rule = family.mixer
    assert isinstance(rule, AttentionRule | LatentRule), f"{family.name} keeps entries beside recurrent layers"
    mixer = attention_mixer(rule, config, 0)
    if family.windowed is not None and family.recurrent is not None:
        types = [FULL if name in family.recurrent.names else name for name in config.texts(family.recurrent.types)]
        windows = windows_of(rule, config.with_fields({"layer_types": types}), count)
        return [attention_mixer(family.windowed, config, window) if window else mixer for window in windows]
    if rule.index is None or mixer.indexer is None:
        return [mixer] * count
    shared = replace(mixer, indexer=replace(mixer.indexer, shared=True))
    kinds: Mapping[str, Mixer] = {"own": mixer, "shared": shared, "none": replace(mixer, indexer=None)}
    return [kinds[indexed] for indexed in indexed_layers(rule.index, config, count)]
