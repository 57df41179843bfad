"""Rope's frequencies: computed in double precision, then rounded to f32, as the program keeps them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.program.ir import RopeTable
from engine.spec.rope import LinearScaling, Llama3Scaling, LongScaling, ProportionalScaling, Rope, YarnScaling

Doubles = NDArray[np.float64]


def rope_table(rope: Rope, context: int) -> RopeTable:
    """Frequencies for a context of `context` tokens; only LongRoPE's choice of factors depends on it."""
    frequencies = rope.theta ** -(np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    magnitude = 1.0
    match rope.scaling:
        case LinearScaling(factor=factor):
            frequencies = frequencies / factor
        case ProportionalScaling(part=part, factor=factor):
            turning = np.arange(rope.dim // 2) < int(part * rope.dim // 2)
            frequencies = np.where(turning, frequencies / factor, 0.0)
        case Llama3Scaling():
            frequencies = _llama3(frequencies, rope.scaling)
        case YarnScaling():
            frequencies = _yarn(frequencies, rope, rope.scaling)
            magnitude = rope.scaling.magnitude
        case LongScaling():
            beyond = context > rope.scaling.original_context
            frequencies = frequencies / np.asarray(rope.scaling.long_factors if beyond else rope.scaling.short_factors)
            magnitude = (beyond and rope.scaling.long_magnitude) or rope.scaling.magnitude
    return RopeTable(tuple(float(value) for value in frequencies.astype(np.float32)), magnitude)


def _llama3(frequencies: Doubles, scaling: Llama3Scaling) -> Doubles:
    """Turns in the original context say how slow a frequency is: below `low` divided, above `high` kept."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-12)  # of nothing: a step
    kept = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    blended: Doubles = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    return blended


def _yarn(frequencies: Doubles, rope: Rope, scaling: YarnScaling) -> Doubles:
    """Frequencies beyond the ramp's upper end are divided by the factor, those before its lower end kept."""
    low = _yarn_dimension(scaling.beta_fast, rope, scaling)
    high = _yarn_dimension(scaling.beta_slow, rope, scaling)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # a step, without a division by zero
    divided = np.clip((np.arange(rope.dim // 2) - low) / (high - low), 0.0, 1.0)
    blended: Doubles = frequencies / scaling.factor * divided + frequencies * (1 - divided)
    return blended


def _yarn_dimension(turns: float, rope: Rope, scaling: YarnScaling) -> float:
    """The dimension whose frequency makes this many turns in the original context."""
    ratio = scaling.original_context / (turns * 2 * math.pi)
    return rope.dim * math.log(ratio) / (2 * math.log(rope.theta))
