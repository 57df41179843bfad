"""Decoders published inside models that also see or hear become what they become by themselves, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.base.errors import UnsupportedError
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from engine.files.sources.opening import open_checkpoint
from engine.spec.families import resolve

from .codecs_numpy import pack_for_conversion
from .conftest import Models
from .prepare import no_tokenizer

Tensors = dict[str, torch.Tensor]
Config = dict[str, object]


@dataclass(frozen=True)
class Published:
    """A case's decoder in the form of a wrapper's checkpoint, with so many tensors of every other part."""

    case: str
    model_type: str
    decoder: str
    head: str
    others: tuple[str, ...]
    left_out: dict[str, int]
    describe: Callable[[Config], Config] = lambda text: {"text_config": text}


PUBLISHED = (
    Published(
        "deepseek_v3",
        "kimi_k25",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.encoder.blocks.0.wo.weight", "mm_projector.proj.0.weight"),
        {"vision": 2},
        lambda text: {"text_config": {**text, "model_type": "kimi_k2"}},
    ),
    Published(
        "mistral-window",
        "mistral3",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.patch_conv.weight", "multi_modal_projector.linear_1.weight"),
        {"vision": 2},
    ),
    Published(
        "mistral-window",
        "mistral3",
        "model.language_model.",
        "lm_head.",
        ("model.vision_tower.patch_conv.weight",),
        {"vision": 1},
    ),
    Published(
        "ministral3",
        "mistral3",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.patch_conv.weight",),
        {"vision": 1},
    ),
    Published("qwen2-odd-yarn", "qwen2_vl", "model.", "lm_head.", ("visual.merger.ln_q.weight",), {"vision": 1}, dict),
    Published(
        "deepseek_v3",
        "kimi_vl",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.patch_embed.proj.weight", "multi_modal_projector.linear_1.weight"),
        {"vision": 2},
    ),
    Published(
        "llama",
        "llava",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.linear_1.weight"),
        {"vision": 2},
        lambda text: {"text_config": {name: value for name, value in text.items() if name != "model_type"}},
    ),
    Published(
        "mistral-window",
        "llava_next",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.vision_model.post_layernorm.weight", "image_newline"),
        {"vision": 2},
    ),
    Published(
        "qwen3_moe",
        "internvl_chat",
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_model.encoder.layers.0.norm1.weight", "mlp1.0.weight"),
        {"vision": 2},
        lambda text: {"llm_config": text},
    ),
    Published(
        "qwen3",
        "internvl",
        "model.language_model.",
        "lm_head.",
        ("model.vision_tower.encoder.layer.0.lambda_1", "model.multi_modal_projector.layer_norm.weight"),
        {"vision": 2},
    ),
    Published("qwen2-odd-yarn", "qwen2_5_vl", "model.", "lm_head.", ("visual.norm.weight",), {"vision": 1}, dict),
    Published(
        "qwen3",
        "qwen3_vl",
        "model.language_model.",
        "lm_head.",
        ("model.visual.norm.weight",),
        {"vision": 1},
        lambda text: {"text_config": {**text, "model_type": "qwen3_vl_text"}},
    ),
    Published(
        "qwen3_moe",
        "qwen3_omni_moe",
        "thinker.model.",
        "thinker.lm_head.",
        ("thinker.visual.norm.weight", "thinker.audio_tower.conv.weight", "talker.model.norm.weight"),
        {"vision": 1, "audio": 1, "speech": 1},
        lambda text: {"thinker_config": {"text_config": {**text, "model_type": "qwen3_omni_moe_text"}}},
    ),
)


def write(published: Published, checkpoint: Path, folder: Path) -> Path:
    """The checkpoint as `published` says, in `folder`."""
    folder.mkdir()
    tensors: Tensors = {name: torch.zeros(3, 2) for name in published.others}
    for name, values in load_file(checkpoint / "model.safetensors").items():
        tensors[
            name.replace("lm_head.", published.head)
            if name.startswith("lm_head.")
            else published.decoder + name.removeprefix("model.")
        ] = values
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((checkpoint / "config.json").read_text())
    config = {**published.describe(text), "model_type": published.model_type, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: f"{each.model_type}-{each.decoder}")
def test_the_decoder_becomes_the_same_model(models: Models, tmp_path: Path, published: Published) -> None:
    model = models(published.case)
    source = write(published, model.checkpoint, tmp_path / "published")
    convert(source, tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    ours = open_model(tmp_path / "m")
    assert ours.spec == model.ftw.spec
    assert {name: bytes(tensor.data) for name, tensor in ours.dense.items()} == {
        name: bytes(tensor.data) for name, tensor in model.ftw.dense.items()
    }
    for one, another in zip(ours.banks, model.ftw.banks, strict=True):
        assert [bytes(one.record(i)) for i in range(one.count)] == [bytes(another.record(i)) for i in range(one.count)]
    opened = open_checkpoint(source)
    _, layout = resolve(opened.config, {name: (each.form, each.shape) for name, each in opened.tensors.items()})
    opened.close()
    assert layout.left_out == published.left_out


def test_experts_as_published_are_the_other_way_round(models: Models, tmp_path: Path) -> None:
    model = models("qwen3_vl_moe")
    folder = tmp_path / "published"
    folder.mkdir()
    tensors = load_file(model.checkpoint / "model.safetensors")
    turned = {
        name: each.transpose(1, 2).contiguous() if ".mlp.experts." in name else each for name, each in tensors.items()
    }
    assert any((turned[name].shape != tensors[name].shape) for name in tensors)
    save_file(turned, folder / "model.safetensors")
    (folder / "config.json").write_text((model.checkpoint / "config.json").read_text())
    convert(folder, tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    for one, another in zip(open_model(tmp_path / "m").banks, model.ftw.banks, strict=True):
        assert [bytes(one.record(i)) for i in range(one.count)] == [bytes(another.record(i)) for i in range(one.count)]


def test_a_wrapper_around_an_unknown_decoder_is_refused_by_the_decoder_s_name() -> None:
    with pytest.raises(UnsupportedError, match="'strange_text'"):
        resolve({"model_type": "mistral3", "text_config": {"model_type": "strange_text"}}, {})
