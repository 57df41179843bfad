"""From config.json to the layers that keep a state, and to what they are."""

from __future__ import annotations

from engine.base.errors import CorruptFileError
from engine.base.plain import shortened
from engine.spec.check import require_positive
from engine.spec.families.config import REMEDY, Config, Key, key
from engine.spec.families.layer_lists import miscounted_layers, undefined_layer
from engine.spec.families.layer_rules import DeltaRule, LinearRule, RecurrentRule
from engine.spec.families.state_spaces import StateRule, state_mixer
from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv

HIDDEN = key("hidden_size")
LAST_SLOPE = 1e-5


def recurrent_layers(rule: RecurrentRule, config: Config, count: int) -> list[bool]:
    """For every layer whether it is recurrent. Raises UnsupportedError for a type of layer that is not known."""
    types, marks = config.texts(rule.types), config.integers(rule.marks)
    numbers = config.integers(rule.numbers)
    if types:
        return _typed(types, rule, config, count)
    if marks:
        if len(marks) != count or not {0, 1}.issuperset(marks):
            raise CorruptFileError(f"{config.where} marks {count} layers with {shortened(marks)}.", REMEDY)
        return [mark == 0 for mark in marks]
    if numbers:
        if min(numbers) < 1 or max(numbers) > count:
            raise CorruptFileError(f"{config.where} numbers the layers {shortened(numbers)} of {count}.", REMEDY)
        return [layer + 1 in numbers for layer in range(count)]
    interval = config.integer(rule.interval)
    if interval < 1:
        raise CorruptFileError(f"{config.where} does not say which layers attend to everything.", REMEDY)
    attends = offset_of(rule.offset, interval, config)
    return [layer % interval != attends for layer in range(count)]


def offset_of(wanted: Key | None, interval: int, config: Config) -> int:
    """Which of every `interval` layers is meant: what config.json says, counted from 0, or the last without a key."""
    offset = interval - 1 if wanted is None else config.integer(wanted)
    if not 0 <= offset < interval:
        raise CorruptFileError(f"{config.where} speaks of layer {offset} of every {interval}.", REMEDY)
    return offset


def _typed(types: tuple[str, ...], rule: RecurrentRule, config: Config, count: int) -> list[bool]:
    unknown = [name for name in types if name not in (*rule.names, *rule.attending)]
    if unknown:
        raise undefined_layer(unknown[0], config)
    if len(types) != count:
        raise miscounted_layers(len(types), count, config)
    return [name in rule.names for name in types]


def recurrent_mixer(
    rule: DeltaRule | LinearRule | StateRule, config: Config, norm_eps: float, depth: float
) -> DeltaNet | LinearAttention | Mamba | Mamba2 | ShortConv:
    """The mixer of a recurrent layer. `depth` is 0 for a model's first layer, and 1 for its last."""
    match rule:
        case DeltaRule():
            return _delta_net(rule, config, norm_eps)
        case LinearRule():
            return _linear_attention(rule, config, depth)
        case _:
            return state_mixer(rule, config, norm_eps)


def _linear_attention(rule: LinearRule, config: Config, depth: float) -> LinearAttention:
    """Slopes reach nearly nothing in the last layer, as MiniMax-01 has them (arXiv 2501.08313)."""
    heads = config.integer(rule.heads)
    require_positive(num_attention_heads=heads)
    return LinearAttention(
        heads=heads,
        head_dim=config.integer(rule.head_dim) or config.integer(HIDDEN) // heads,
        slope=1 - depth + LAST_SLOPE,
        norm_eps=rule.norm_eps,
    )


def _delta_net(rule: DeltaRule, config: Config, norm_eps: float) -> DeltaNet:
    k_dim = config.integer(rule.k_dim)
    require_positive(linear_key_head_dim=k_dim)
    rank = k_dim if rule.low_rank else 0
    return DeltaNet(
        key_heads=config.integer(rule.key_heads),
        heads=config.integer(rule.heads),
        k_dim=k_dim,
        v_dim=config.integer(rule.v_dim),
        kernel=config.integer(rule.kernel),
        scale=k_dim**-0.5,
        norm_eps=rule.norm_eps or norm_eps,
        gate_activation=rule.gate_activation,
        decay_rank=rank,
        gate_rank=rank,
        channelwise=rule.channelwise,
        decay_bound=config.number(rule.bound) if config.flag(rule.bounded) else 0.0,
        beta_scale=2.0 if config.flag(rule.doubled_beta) else 1.0,
    )
