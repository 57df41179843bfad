"""What a config.json leaves out is what transformers' configuration class has, wherever weights would not tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedConfig

from engine.base.errors import FreetokenError
from engine.spec.families import spec_from_config
from engine.spec.schema import Spec

from .axes.fields import tensors_of
from .cases import CASES, Case
from .tiny import configuration

DERIVED = ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "layers_block_type", "indexer_types")
NAMES = ("model_type", "architectures", "transformers_version")
DEVIATING = {
    ("dbrx", "rope_parameters"): "theta is that of attn_config, as in the publisher's code",
    ("cohere2_moe", "rope_scaling"): "transformers' class does not look at it",
    ("ministral3", "rope_scaling"): "without a rate at which queries grow its code does not run",
    ("mistral4", "rope_scaling"): "without a rate at which queries grow its code does not run",
}
FIRST = {case.family: case for case in reversed(CASES) if not case.wrapped and not case.prefix}


def _variants(text: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config without each of its fields, and with positions as older releases wrote them."""
    for name in text:
        if name not in NAMES:
            yield name, {each: value for each, value in text.items() if each != name}
    yield "derived", {name: value for name, value in text.items() if name not in DERIVED}
    rope = text.get("rope_parameters") or {}
    if "rope_theta" in rope:
        rest = {name: value for name, value in text.items() if name != "rope_parameters"}
        theta = rope["rope_theta"]
        yield "rope_scaling", {**rest, "rope_theta": theta, "rope_scaling": {"type": "linear", "factor": 4.0}}
        if text["model_type"] != "gpt_oss":  # whose null transformers takes for yarn
            yield "rope_theta", {**rest, "rope_theta": theta, "rope_scaling": None}


def _written(config: PreTrainedConfig) -> dict[str, Any]:
    """A config as it is written, but for infinities, which transformers writes as objects."""
    text = config.to_json_string(use_diff=False)
    return json.loads(text, object_hook=lambda found: float(found["__float__"]) if "__float__" in found else found)


def _spec(config: dict[str, Any]) -> Spec | None:
    """None for one that is refused."""
    try:
        return replace(spec_from_config(config), tied_head=True)  # which the tensors tell
    except FreetokenError:
        return None


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_fields_left_out_are_as_transformers_has_them(case: Case) -> None:
    config = configuration(case)
    whole = _written(config)
    inside = "text_config" in case.settings
    compared = 0
    for name, text in _variants(whole["text_config"] if inside else whole):
        given = {**whole, "text_config": text} if inside else text
        ours = _spec(given)
        try:
            completed = _written(type(config).from_dict(deepcopy(given)))
        except Exception:  # transformers' classes refuse in many ways
            continue
        theirs = _spec(completed)
        if ours is None or theirs is None or tensors_of(ours) != tensors_of(theirs):
            continue
        compared += 1
        assert ours == theirs or (case.family, name) in DEVIATING, f"{case.family} without {name}"
    assert compared > 5
