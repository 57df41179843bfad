"""The numbers that sampling depends on: one table for requests, models' own settings, flags and the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown  # a bad value may be megabytes long, and an answer quotes it
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with `whole` no fractions."""

    low: float
    high: float
    whole: bool = False

    def problem(self, value: object) -> str:
        """Why `value` cannot be used, "" if it can."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return f"a {'whole ' if self.whole else ''}number is expected, not {shown(value)}."
        # True for infinities and NaN too, and safe for whole numbers that no float can hold.
        if not self.low <= value <= self.high:
            return f"{shown(value)} is not within {self.low} and {self.high}."
        return ""


@dataclass(frozen=True)
class Parameter:
    """One number of sampling. `default` holds where nobody says anything; None: a fresh one each time.

    With `of_model` set a model's generation_config.json may give it.
    """

    range: Range
    default: Any
    of_model: bool = False


PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(Range(0, 100), 1.0, of_model=True),
    "top_p": Parameter(Range(0, 1), 1.0, of_model=True),
    "top_k": Parameter(Range(-1, 2**31 - 1, whole=True), 0, of_model=True),  # -1, like 0, keeps all
    "min_p": Parameter(Range(0, 1), 0.0, of_model=True),
    "repetition_penalty": Parameter(Range(0.01, 100), 1.0, of_model=True),
    "frequency_penalty": Parameter(Range(-2, 2), 0.0),
    "presence_penalty": Parameter(Range(-2, 2), 0.0),
    "seed": Parameter(Range(-(2**63), 2**63 - 1, whole=True), None),
}
OF_MODEL = tuple(name for name, parameter in PARAMETERS.items() if parameter.of_model)

CHAT_DEFAULTS: Mapping[str, float] = {"temperature": 0.7, "top_p": 0.9}
"""How `run` samples where neither the model nor the user says it: at 1.0, the default of APIs, small models ramble."""
