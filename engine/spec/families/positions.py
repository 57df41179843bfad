"""Rope as config.json describes it, in its old form (`rope_theta`, `rope_scaling`) and its new (`rope_parameters`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from engine.base.errors import UnsupportedError
from engine.spec.check import require_positive
from engine.spec.families.attention_rules import RopeRule
from engine.spec.families.config import Config, key
from engine.spec.rope import LinearScaling, Llama3Scaling, LongScaling, ProportionalScaling, Rope, YarnScaling

CONTEXT = key("max_position_embeddings", "model_max_length", "max_seq_len")
ORIGINAL_CONTEXT = key("original_max_position_embeddings", default=0)
PROPORTIONAL = "proportional"
Scaling = LinearScaling | YarnScaling | Llama3Scaling | LongScaling | ProportionalScaling | None


def read_rope(config: Config, rule: RopeRule, head_dim: int) -> Rope:
    """The rope of a head of `head_dim` values. Raises UnsupportedError for a rope type that is not known."""
    parameters = _parameters_of_kind(config, rule)
    theta = parameters.number(key("rope_theta", default=config.number(key("rope_theta", default=rule.theta))))
    dim = _rotated(config, parameters, rule, head_dim)
    return Rope(theta * _stretch(parameters, head_dim), dim, config.flag(rule.pairs), _read_scaling(config, parameters))


def _parameters_of_kind(config: Config, rule: RopeRule) -> Config:
    """The object that holds the rope of the rule's kind of layers."""
    parameters = rope_parameters(config)
    if not any(isinstance(value, dict) for value in parameters.data.values()):
        own = rule.own_theta
        return parameters if own is None else Config({"rope_theta": config.number(own)}, config.where)
    if rule.kind not in parameters.data:
        raise UnsupportedError(
            f"{parameters.where} has other positions for other layers, which this family does not have.",
            "Use another model, or a release that knows it.",
        )
    return parameters.inner(rule.kind)


def _rotated(config: Config, parameters: Config, rule: RopeRule, head_dim: int) -> int:
    """How many values of a head are rotated."""
    if rule.dim is not None and config.has(rule.dim) and "partial_rotary_factor" not in parameters.data:
        return config.integer(rule.dim)
    if rope_type(parameters) == PROPORTIONAL:
        return head_dim
    part_of = rule.part or key("partial_rotary_factor", default=1.0)
    part = parameters.number(part_of) if "partial_rotary_factor" in parameters.data else config.number(part_of)
    if part != 1.0 and rule.part is None:
        raise UnsupportedError(
            f"{config.where} asks for partial_rotary_factor = {part}; in this family heads are rotated whole.",
            "Use another model, or a release that knows it.",
        )
    return int(head_dim * part)


def rope_parameters(config: Config) -> Config:
    """The object that holds the scaling, under its new name or its old one."""
    return config.inner("rope_parameters" if config.data.get("rope_parameters") else "rope_scaling")


def has_null_theta(config: Config) -> bool:
    """Whether config.json says in so many words that positions have no base."""
    parameters = rope_parameters(config).data
    holder = parameters if "rope_theta" in parameters else config.data
    return "rope_theta" in holder and holder["rope_theta"] is None


def rope_type(parameters: Config) -> str:
    return parameters.text(key("rope_type", "type", default="default"))


def context_length(config: Config) -> int:
    """Tokens the model can attend to: yarn counts from the length it was trained at."""
    length = config.integer(CONTEXT)
    parameters = rope_parameters(config)
    if rope_type(parameters) == "yarn":
        stretched = _original_context(config, parameters) * _factor(config, parameters)
        return max(length, int(stretched))
    return length


def yarn_score_scale(config: Config) -> float:
    """DeepSeek scales attention scores by the square of yarn's magnitude for all dimensions."""
    parameters = rope_parameters(config)
    all_dims = parameters.number(key("mscale_all_dim", default=0.0))
    if rope_type(parameters) == "default" or not all_dims:
        return 1.0
    return _yarn_magnitude(_factor(config, parameters), all_dims) ** 2


def _read_scaling(config: Config, parameters: Config) -> Scaling:
    name = rope_type(parameters)
    if name not in SCALINGS:
        raise UnsupportedError(
            f"{parameters.where} asks for rope_type = {name!r}; this release knows {', '.join(sorted(SCALINGS))}.",
            "Use another model, or a release that knows it.",
        )
    return SCALINGS[name](config, parameters)


def _stretch(parameters: Config, head_dim: int) -> float:
    """How much larger theta is: HunYuan's `alpha`, NTK-aware scaling (bloc97 2023) that is the same at any length."""
    if rope_type(parameters) != "dynamic" or "alpha" not in parameters.data:
        return 1.0
    alpha = parameters.number(key("alpha"))
    require_positive(alpha=alpha, head_dim=head_dim - 2)
    return math.pow(alpha, head_dim / (head_dim - 2))


def _default(config: Config, parameters: Config) -> Scaling:
    return None


def _dynamic(config: Config, parameters: Config) -> Scaling:
    """NTK by length changes nothing up to max_position_embeddings, and a context never grows beyond that."""
    return None


def _linear(config: Config, parameters: Config) -> Scaling:
    return LinearScaling(parameters.number(key("factor")))


def _llama3(config: Config, parameters: Config) -> Scaling:
    return Llama3Scaling(
        parameters.number(key("factor")),
        _original_context(config, parameters),
        parameters.number(key("low_freq_factor")),
        parameters.number(key("high_freq_factor")),
    )


def _yarn(config: Config, parameters: Config) -> Scaling:
    factor = _factor(config, parameters)
    magnitude = parameters.number(key("attention_factor", default=_default_yarn_magnitude(parameters, factor)))
    return YarnScaling(
        factor,
        _original_context(config, parameters),
        parameters.number(key("beta_fast", default=32.0)),
        parameters.number(key("beta_slow", default=1.0)),
        parameters.flag(key("truncate", default=True)),
        magnitude,
    )


def _longrope(config: Config, parameters: Config) -> Scaling:
    factor, original = _factor(config, parameters), _original_context(config, parameters)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return LongScaling(
        parameters.numbers(key("short_factor")),
        parameters.numbers(key("long_factor")),
        original,
        parameters.number(key("short_mscale", "attention_factor", default=default)),
        parameters.number(key("long_mscale", default=0.0)),
    )


def _proportional(config: Config, parameters: Config) -> Scaling:
    part, factor = key("partial_rotary_factor", default=1.0), key("factor", default=1.0)
    return ProportionalScaling(parameters.number(part), parameters.number(factor))


SCALINGS: Mapping[str, Callable[[Config, Config], Scaling]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,  # its first name
    "mrope": _default,  # positions in three axes, which text has alike
    PROPORTIONAL: _proportional,
    "yarn": _yarn,
}


def _original_context(config: Config, parameters: Config) -> int:
    """A length beside the rope parameters wins over the one among them; without either, the whole context."""
    return config.integer(ORIGINAL_CONTEXT) or parameters.integer(ORIGINAL_CONTEXT) or config.integer(CONTEXT)


def _factor(config: Config, parameters: Config) -> float:
    original = _original_context(config, parameters)
    require_positive(original_max_position_embeddings=original)
    factor = parameters.number(key("factor", default=config.integer(CONTEXT) / original))
    require_positive(factor=factor)
    return factor


def _default_yarn_magnitude(parameters: Config, factor: float) -> float:
    """With both of DeepSeek's settings their ratio; else the paper's 0.1 ln(factor) + 1."""
    own = parameters.number(key("mscale", default=0.0))
    all_dims = parameters.number(key("mscale_all_dim", default=0.0))
    if own and all_dims:
        return _yarn_magnitude(factor, own) / _yarn_magnitude(factor, all_dims)
    return _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
