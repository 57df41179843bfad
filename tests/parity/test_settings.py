"""Every field of a config.json, changed in turn: what changes transformers' answer changes ours alike or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from engine.base.errors import FreetokenError
from engine.spec.families import spec_from_config
from engine.spec.schema import Spec

from .cases import CASES, Case
from .check import TOLERANCE, Floats, in_chunks
from .layout_weights import LayoutWeights
from .prepare import reference
from .sample import covering
from .tiny import PROMPT_TOKENS, auto_class, configuration, save

# Names, tokens, training, other parts of a model, and how transformers computes; whether a head is tied, tensors tell.
NOT_OF_THE_DECODER = {
    *("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "vision_config"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "num_logits_to_keep"),
    *("initializer_range", "rescale_prenorm_residual", "output_router_logits", "router_aux_loss_coef"),
    *("return_dict", "output_hidden_states", "output_attentions", "use_cache", "chunk_size_feed_forward"),
    *("is_encoder_decoder", "problem_type", "experts_implementation", "use_mamba_kernels"),
}
WORDS = ("sigmoid", "softmax", "greedy", "sum", "average", "nope", "rope", "sparse_mixer")
ACTIVATIONS = ("gelu_pytorch_tanh", "silu", "relu2", "gelu")
LONG = "LongRoPE has the factors of the model's whole context here, so that no row changes while a text grows"
OTHERWISE = {
    ("llama", "max_position_embeddings"): LONG,
    ("llama", "original_max_position_embeddings"): LONG,
    ("phi3", "max_position_embeddings"): LONG,
    ("phi3", "original_max_position_embeddings"): LONG,
    ("deepseek_v4", "n_shared_experts"): "there it is one whatever the number; the tensors tell",
    ("longcat_flash", "qk_head_dim"): "the sum of two others, which are read",
    ("nemotron_h", "time_step_min"): "docs/families.md: a bound of training",
    ("step3p7", "layer_types"): "per_layer_config says once more which layers have other heads",
    ("phimoe", "max_position_embeddings"): "docs/families.md: factors beyond the original context",
    ("phimoe", "original_max_position_embeddings"): "the same",
}
SAVED = {
    case.name: case for case in CASES if not (case.wrapped or case.prefix or case.fused or case.apart or case.renamed)
}
ONE_OF_EVERY_MIXER = covering(lambda spec: frozenset(type(layer.mixer) for layer in spec.layers))


class Settings:
    """A case's model in both worlds, with other settings and the same weights."""

    def __init__(self, case: Case, folder: Path) -> None:
        torch.set_num_threads(1)
        self._inside = "text_config" in case.settings
        self._auto = auto_class(case)
        self._class: type[PreTrainedConfig] = type(configuration(case))
        self._state = save(case, folder).state_dict()
        self._weights = LayoutWeights(folder)
        self.config: dict[str, Any] = _written(configuration(case))
        self.spec = spec_from_config(self.config)
        size = configuration(case).get_text_config().vocab_size
        self._prompt = torch.randint(3, size, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))

    def changed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The config with another value for one of its fields, and the name of that."""
        text = self.config["text_config"] if self._inside else self.config
        for path, value in _fields(text):
            for other in _others(path[-1], value):
                new = deepcopy(text)
                holder = new
                for name in path[:-1]:
                    holder = holder[name]
                holder[path[-1]] = other
                yield ".".join(path), {**self.config, "text_config": new} if self._inside else new

    @torch.no_grad()
    def theirs(self, config: dict[str, Any]) -> Floats | None:
        """Logits of the prompt by transformers; None where it refuses, or wants other weights."""
        try:
            model = (
                self._auto.from_config(self._class.from_dict(deepcopy(config)), attn_implementation="eager")
                .float()
                .eval()
            )
            model.load_state_dict(self._state)
            logits: Floats = model(input_ids=self._prompt, use_cache=False).logits[0].numpy()
        except Exception:  # in many ways
            return None
        return logits if np.isfinite(logits).all() else None

    def ours(self, spec: Spec) -> Floats:
        """The same by the reference executor."""
        executor = reference(replace(spec, tied_head=self.spec.tied_head), self._weights)
        return in_chunks(executor, self._prompt[0].tolist(), [PROMPT_TOKENS])


def _written(config: PreTrainedConfig) -> dict[str, Any]:
    text = config.to_json_string(use_diff=False)
    found: dict[str, Any] = json.loads(
        text, object_hook=lambda each: float(each.get("__float__", "nan")) if "__float__" in each else each
    )
    return found


def _fields(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in config.items():
        if name in NOT_OF_THE_DECODER:
            continue
        if isinstance(value, dict) and value:
            yield from _fields(value, (*path, name))
        else:
            yield (*path, name), value


def _others(name: str, value: Any) -> Sequence[Any]:
    """Other values of a field. None of them is zero, which often stands for nothing here and not there."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(1, value // 2)]
    if isinstance(value, float):
        return [value * 1.7 + 0.1]
    if isinstance(value, str):
        return ACTIVATIONS if "act" in name else WORDS
    if isinstance(value, list) and value:
        turned = [value[::-1]]
        return [*turned, [value[1], *[value[0]] * (len(value) - 1)]] if len(set(map(str, value))) > 1 else turned
    return [True, 3, 0.37, 8] if value is None else []


def _differs(case: Case, field: str) -> bool:
    return (case.family, field.rpartition(".")[2]) in OTHERWISE


def _far(one: Floats, other: Floats) -> bool:
    return bool(abs(one - other).max() > TOLERANCE * abs(other).max())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ONE_OF_EVERY_MIXER else pytest.mark.long) for name in SAVED]
)
def test_what_is_not_read_changes_nothing(tmp_path: Path, name: str) -> None:
    case = SAVED[name]
    settings = Settings(case, tmp_path)
    before = settings.theirs(settings.config)
    assert before is not None
    compared = 0
    for field, config in settings.changed():
        if _spec(config) != settings.spec or _differs(case, field):
            continue
        after = settings.theirs(config)
        compared += after is not None
        assert after is None or not _far(after, before), f"{field} is ignored here, and not there"
    assert compared > 3


@pytest.mark.long
@pytest.mark.parametrize("name", SAVED)
def test_what_is_read_means_the_same(tmp_path: Path, name: str) -> None:
    case = SAVED[name]
    settings = Settings(case, tmp_path)
    compared = 0
    for field, config in settings.changed():
        spec = _spec(config)
        if spec is None or spec == settings.spec or _differs(case, field):
            continue
        theirs = settings.theirs(config)
        if theirs is not None:
            compared += 1
            assert not _far(settings.ours(spec), theirs), f"{field} means something else there"
    assert compared > 1


def _spec(config: dict[str, Any]) -> Spec | None:
    """None for a config that is refused."""
    try:
        return spec_from_config(config)
    except FreetokenError:
        return None
