"""From a family's record and a config.json to a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.check import require, require_positive
from engine.spec.families.compressed import compressed_mixers, layers_by_token, read_streams
from engine.spec.families.config import Config, key
from engine.spec.families.indexers import indexed_layers, read_indexer
from engine.spec.families.layer_lists import OTHER_MODEL, layer_names, miscounted_layers, undefined_layer
from engine.spec.families.positions import context_length, read_rope, yarn_score_scale
from engine.spec.families.record import (
    FULL,
    LAYER_TYPES,
    SLIDING,
    SLIDING_ALL,
    SLIDING_LATE,
    SLIDING_MOST,
    AttentionRule,
    CompressedRule,
    Family,
    GrowthRule,
    LatentRule,
    LayerInputsRule,
    MoeRule,
    NormRule,
    Part,
    RopeRule,
    SinglePartRule,
    StreamRule,
    WindowRule,
)
from engine.spec.families.recurrent import offset_of, recurrent_layers, recurrent_mixer
from engine.spec.families.shared_keys import of_layer, with_shared_keys
from engine.spec.families.single_part import parts_of_layers
from engine.spec.residual import RMS_NORM, Norm, Residual
from engine.spec.rope import Growth, Rope
from engine.spec.schema import (
    MOST_LAYERS,
    Activation,
    Attention,
    Dense,
    Experts,
    Ffn,
    LatentAttention,
    Layer,
    LayerInputs,
    Mixer,
    Moe,
    Router,
    Shared,
    Spec,
)

LAYERS = key("num_hidden_layers", "n_layers")
PAIRS = key("num_layers")
DEPTH_EPS = 1e-5  # for models of one layer, as transformers has it
HIDDEN = key("hidden_size", "d_model")
DENSE, SPARSE = "dense", "sparse"
COMBINATIONS = {"sum": 1.0, "average": 0.5}
MixerRule = AttentionRule | LatentRule | CompressedRule


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
    moe = _moe_layers(family.moe, config, count)
    dense = None if all(moe) else _dense(family, config)
    ffns: list[Ffn | None] = [
        _experts(family, config.of_layer(layer)) if moe[layer] else dense for layer in range(count)
    ]
    if family.moe is not None and any(moe):
        by_token = layers_by_token(family.moe, config, count)
        ffns = [_without_choice(ffn) if named else ffn for ffn, named in zip(ffns, by_token, strict=True)]
    mixers = _mixers(family, config, moe)
    layers = [
        Layer(mixer, ffn, _residual(family.residual, config, mixer))
        for mixer, ffn in zip(mixers, ffns, strict=True)
        if ffn is not None
    ]
    return layers if family.shared_keys is None else with_shared_keys(layers, family.shared_keys, config)


def _without_choice(ffn: Ffn | None) -> Ffn | None:
    """Experts that a table names by token ids."""
    if not isinstance(ffn, Moe):
        return ffn
    return replace(ffn, router=replace(ffn.router, by_token=True, choice_bias=False))


def _residual(rule: Residual | StreamRule, config: Config, mixer: Mixer | None) -> Residual:
    """How a layer with this mixer joins the residual stream."""
    if isinstance(rule, Residual):
        return rule
    keep, add = rule.attention if isinstance(mixer, Attention | LatentAttention) else rule.recurrent
    factors = [config.number(factor) for factor in (keep, add, *rule.ffn)]
    return Residual("normed", attn_keep=factors[0], attn_add=factors[1], ffn_keep=factors[2], ffn_add=factors[3])


def _paired_layers(family: Family, config: Config) -> list[Layer]:
    pairs = config.integer(PAIRS)
    require(0 < pairs <= MOST_LAYERS // 2, f"{config.where} counts {pairs} layers")
    mixer = _mixer(family.mixer, config, 0)
    return [
        Layer(mixer, replace(_experts(family, config), deferred=True)),
        Layer(mixer, _dense(family, config)),
    ] * pairs


def _single_part_layers(family: Family, rule: SinglePartRule, config: Config) -> list[Layer]:
    residual = _residual(family.residual, config, None)
    make: Mapping[Part, Callable[[], Layer]] = {
        "attention": lambda: Layer(_mixer(family.mixer, config, 0), None, residual),
        "recurrent": lambda: Layer(_recurrent(family, config, 0.0), None, residual),
        "dense": lambda: Layer(None, _dense(family, config), residual),
        "experts": lambda: Layer(None, _experts(family, config), residual),
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
    if family.mixer.index is not None:
        mixer = _mixer(family.mixer, config, 0)
        assert mixer.indexer is not None, "a family with a rule has an indexer"
        shared = replace(mixer, indexer=replace(mixer.indexer, shared=True))
        kinds: Mapping[str, Mixer] = {"own": mixer, "shared": shared, "none": replace(mixer, indexer=None)}
        return [kinds[indexed] for indexed in indexed_layers(family.mixer.index, config, count)]
    if family.recurrent is None:
        windows = _windows(family.mixer, config, count)
        windowed = family.windowed or family.mixer
        unrouted = family.unrouted or family.mixer
        return [
            _mixer(windowed if window else family.mixer if is_moe else unrouted, of_layer(config, layer), window)
            for layer, (window, is_moe) in enumerate(zip(windows, moe, strict=True))
        ]
    attention = _mixer(family.mixer, config, 0)
    keep_states = recurrent_layers(family.recurrent, config, count)
    depths = [layer / (count - 1 + DEPTH_EPS) for layer in range(count)]
    return [
        _recurrent(family, config, depth) if keeps_state else attention
        for keeps_state, depth in zip(keep_states, depths, strict=True)
    ]


def _windows(rule: MixerRule, config: Config, count: int) -> list[int]:
    """For every layer the width of its attention window, 0 where it sees everything."""
    window = rule.window if isinstance(rule, AttentionRule) else None
    size = _window(window, config) if window and config.flag(window.enabled) else 0
    types = config.texts(LAYER_TYPES)
    if window is not None and config.integers(window.marked):
        return _marked_windows(window, types, size, config, count)
    if types:
        return _typed_windows(types, window, size, config, count)
    if window is None or window.layers == SLIDING_ALL:
        return [size] * count
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


def _moe_layers(rule: MoeRule | None, config: Config, count: int) -> list[bool]:
    """For every layer whether it has routed experts."""
    if rule is None or not config.flag(rule.enabled) or config.integer(rule.count) < rule.fewest:
        return [False] * count
    types = layer_names(rule.types, (DENSE, SPARSE), config)
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


def _mixer(rule: MixerRule, config: Config, window: int) -> Attention | LatentAttention:
    match rule:
        case AttentionRule():
            return _attention(rule, config, window)
        case LatentRule():
            return _latent_attention(rule, config)
        case CompressedRule():
            raise AssertionError("layers with compressed entries are made together")


def _attention(rule: AttentionRule, config: Config, window: int) -> Attention:
    heads = config.integer(rule.heads)
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
        v_dim=config.integer(rule.v_dim),
        value_scale=config.number(rule.value_scale),
        softcap=config.number(rule.softcap),
        clip=config.number(rule.clip),
        growth=_growth(rule.growth, config),
        indexer=None if rule.index is None else read_indexer(rule.index, config, rope),
        v_norm=rule.v_norm,
        v_from_k=config.flag(rule.v_from_k),
    )


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
    require_positive(qk_nope_head_dim=nope_dim, qk_rope_head_dim=rope_dim)
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
        norm_eps=rule.norm_eps,
        bias=config.flag(rule.bias),
        gated=rule.gated,
        indexer=None if rule.index is None else read_indexer(rule.index, config, rope),
        latent_scale=latent_scale,
    )


def _rope(rule: RopeRule | None, config: Config, head_dim: int) -> Rope | None:
    return read_rope(config, rule, head_dim) if rule is not None and _is_on(rule.when, config) else None


def _is_on(when: tuple[str, str] | None, config: Config) -> bool:
    """Whether a field has the value that switches something on; nothing to switch it is on."""
    return when is None or config.data.get(when[0]) == when[1]


def _dense(family: Family, config: Config) -> Dense:
    if family.dense_width is None:
        raise UnsupportedError(f"{config.where} has layers without experts, which this family does not do.")
    activation, bias = _activation(family, config), config.flag(family.dense_bias)
    return Dense(config.integer(family.dense_width), activation, bias)


def _experts(family: Family, config: Config) -> Moe:
    rule, activation = family.moe, _activation(family, config)
    assert rule is not None, f"{family.name} has no experts"
    limit = config.number(rule.limit)
    if limit:
        activation = Activation("limited_silu", limit=limit)
    experts = Experts(config.integer(rule.count), config.integer(rule.width), activation, rule.expert_bias)
    return Moe(
        _router(rule, config),
        experts,
        _shared(rule, config),
        config.integer(rule.latent),
        rule.scaled_input,
        rule.apart,
        config.integer(rule.zero),
    )


def _activation(family: Family, config: Config) -> Activation:
    clamped = family.moe.clamped if family.moe else None
    if clamped is not None:
        return Activation("clamped_silu", config.number(clamped.alpha), config.number(clamped.limit))
    return Activation(family.activations[config.text(family.hidden_act)])


def _router(rule: MoeRule, config: Config) -> Router:
    groups = top_groups = group_top = 1
    chosen = rule.groups
    if chosen is not None and _is_on(chosen.when, config):
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


def _shared(rule: MoeRule, config: Config) -> Shared | None:
    if rule.shared is None:
        return None
    width = config.integer(rule.shared.width) * config.integer(rule.shared.count)
    return Shared(width, rule.shared.gated, _shared_share(rule, config)) if width else None


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
