"""From config.json to the layers that keep a state, and to what they are."""

from __future__ import annotations

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.base.plain import shortened
from engine.spec.check import require_positive
from engine.spec.families.config import REMEDY, Config
from engine.spec.families.record import DeltaRule, RecurrentRule
from engine.spec.recurrent import DeltaNet

ATTENTION_NAMES = ("attention", "full_attention")


def recurrent_layers(rule: RecurrentRule, config: Config, count: int) -> list[bool]:
    """For every layer whether it is recurrent. Raises UnsupportedError for a type of layer that is not known."""
    types, numbers = config.texts(rule.types), config.integers(rule.numbers)
    if types:
        return _typed(types, rule, config, count)
    if numbers:
        if min(numbers) < 1 or max(numbers) > count:
            raise CorruptFileError(f"{config.where} numbers the layers {shortened(numbers)} of {count}.", REMEDY)
        return [layer + 1 in numbers for layer in range(count)]
    interval = config.integer(rule.interval)
    if interval < 1:
        raise CorruptFileError(f"{config.where} does not say which layers attend to everything.", REMEDY)
    return [(layer + 1) % interval != 0 for layer in range(count)]


def _typed(types: tuple[str, ...], rule: RecurrentRule, config: Config, count: int) -> list[bool]:
    unknown = [name for name in types if name not in (*rule.names, *ATTENTION_NAMES)]
    if unknown:
        raise UnsupportedError(
            f"{config.where} asks for a layer of the type {shortened(unknown[0])}, which this model does not define.",
            "Use another model, or a release that knows it.",
        )
    if len(types) != count:
        raise UnsupportedError(f"{config.where} lists {len(types)} types of layers for {count} layers.")
    return [name in rule.names for name in types]


def recurrent_mixer(rule: DeltaRule, config: Config, norm_eps: float) -> DeltaNet:
    """The mixer of all recurrent layers of a model."""
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
        norm_eps=norm_eps,
        gate_activation=rule.gate_activation,
        decay_rank=rank,
        gate_rank=rank,
    )
