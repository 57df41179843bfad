"""State spaces and short convolutions in config.json: which fields mean what, and the mixers that they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.base.errors import CorruptFileError
from engine.base.plain import finite, shortened
from engine.spec.check import require, require_positive
from engine.spec.families.config import REMEDY, Config, Key, key
from engine.spec.recurrent import Mamba, Mamba2, ShortConv

AUTO = "auto"
HIDDEN = key("hidden_size")
_RANKS_A_STEP = 16  # hidden values for each that a time step comes through, where config.json leaves it to the model


@dataclass(frozen=True)
class MambaRule:
    """A state space of the first version; it is `expand` times as wide as the model."""

    expand: Key
    state_dim: Key
    step_rank: Key  # "auto": a sixteenth of the model's width
    kernel: Key
    bias: Key | bool
    conv_bias: Key | bool


@dataclass(frozen=True)
class Mamba2Rule:
    """A state space of the second version. `head_dim` "auto": the width, `expand` times the model's, over the heads.

    `limits` is the field with the bounds of time steps, of which the upper one may be infinite.
    """

    heads: Key
    head_dim: Key
    expand: Key
    groups: Key
    state_dim: Key
    kernel: Key
    limits: Key
    bias: Key | bool
    conv_bias: Key | bool


@dataclass(frozen=True)
class ConvRule:
    """A short convolution between two gates."""

    kernel: Key
    bias: Key | bool


StateRule = MambaRule | Mamba2Rule | ConvRule


def state_mixer(rule: StateRule, config: Config, norm_eps: float) -> Mamba | Mamba2 | ShortConv:
    """The mixer that a rule reads. Raises CorruptFileError for what is missing, of a wrong type or impossible."""
    match rule:
        case MambaRule():
            return _mamba(rule, config, norm_eps)
        case Mamba2Rule():
            return _mamba2(rule, config, norm_eps)
        case ConvRule():
            return ShortConv(config.integer(rule.kernel), config.flag(rule.bias))


def _mamba(rule: MambaRule, config: Config, norm_eps: float) -> Mamba:
    hidden = config.integer(HIDDEN)
    return Mamba(
        channels=config.integer(rule.expand) * hidden,
        state_dim=config.integer(rule.state_dim),
        step_rank=_unless_auto(config, rule.step_rank, math.ceil(hidden / _RANKS_A_STEP)),
        kernel=config.integer(rule.kernel),
        norm_eps=norm_eps,
        bias=config.flag(rule.bias),
        conv_bias=config.flag(rule.conv_bias),
    )


def _mamba2(rule: Mamba2Rule, config: Config, norm_eps: float) -> Mamba2:
    heads, width = config.integer(rule.heads), config.integer(rule.expand) * config.integer(HIDDEN)
    require_positive(mamba_heads=heads)
    lowest, highest = _limits(rule.limits, config)
    return Mamba2(
        heads=heads,
        head_dim=_unless_auto(config, rule.head_dim, width // heads),
        groups=config.integer(rule.groups),
        state_dim=config.integer(rule.state_dim),
        kernel=config.integer(rule.kernel),
        norm_eps=norm_eps,
        step_min=lowest,
        step_max=highest,
        bias=config.flag(rule.bias),
        conv_bias=config.flag(rule.conv_bias),
    )


def _unless_auto(config: Config, wanted: Key, automatic: int) -> int:
    return automatic if config.raw(wanted) == AUTO else config.integer(wanted)


def _limits(wanted: Key, config: Config) -> tuple[float, float]:
    """The lowest and the highest time step; 0 for a highest that is infinite."""
    value = config.raw(wanted)
    match value:
        case [lowest, highest] if finite(lowest) is not None and _is_bound(highest):
            bounded = finite(_bound(highest))
            require(bounded is None or bounded > 0, f"time steps cannot be below {shortened(highest)}")
            return float(lowest), bounded or 0.0
    raise CorruptFileError(
        f"{wanted.names[0]} in {config.where} must be a lowest and a highest number, not {shortened(value)}.", REMEDY
    )


def _is_bound(value: Any) -> bool:
    return _bound(value) == math.inf or finite(_bound(value)) is not None


def _bound(value: Any) -> Any:
    """A number as JSON spells it, in the way in which transformers spells an infinite one too."""
    return math.inf if value == {"__float__": "Infinity"} else value
