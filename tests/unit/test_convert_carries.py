"""What a checkpoint says beside its weights reaches the converted model, wherever it stands; the rest is counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from engine.spec.schema import Spec
from engine.text.text import Text
from tests.unit import text_models
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder, write_sharded_folder
from tests.unit.converting import run, write_tokenizer

ENDS = ("<end>", "<stop>", "<turn>")
FIRST_END = 300
TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return mixtral_tensors()


@pytest.fixture
def spoken(tmp_path: Path, tensors: dict) -> Path:
    """A checkpoint with a tokenizer, without end tokens and templates."""
    folder = write_folder(tmp_path / "source", tensors)
    tokenizer = text_models.byte_level(FIRST_END)
    tokenizer.add_special_tokens(text_models.special(*ENDS))
    return text_models.save(folder, tokenizer, None)


def put(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


END_PLACES: dict[str, tuple[Callable[[Path], None], set[int]]] = {
    "config, a number": (lambda f: put(f, "config.json", eos_token_id=300), {300}),
    "config, a list": (lambda f: put(f, "config.json", eos_token_id=[301, 300]), {300, 301}),
    "config, of the text model": (lambda f: put(f, "config.json", text_config={"eos_token_id": 302}), {302}),
    "generation config": (lambda f: put(f, "generation_config.json", eos_token_id=[300, 302]), {300, 302}),
    "tokenizer config alone": (lambda f: put(f, "tokenizer_config.json", eos_token="<turn>"), {302}),
    "special tokens map": (lambda f: put(f, "special_tokens_map.json", eos_token={"content": "<stop>"}), {301}),
}


@pytest.mark.parametrize("place", END_PLACES)
def test_end_tokens_are_found_wherever_they_stand(tmp_path: Path, spoken: Path, place: str) -> None:
    write, expected = END_PLACES[place]
    write(spoken)
    run(spoken, tmp_path / "dest")
    assert Text.load(tmp_path / "dest").eos_ids == expected


TEMPLATE_PLACES: dict[str, Callable[[Path], Any]] = {
    "chat_template.jinja": lambda f: (f / "chat_template.jinja").write_text(TEMPLATE),
    "chat_template.json": lambda f: put(f, "chat_template.json", chat_template=TEMPLATE),
    "tokenizer_config.json": lambda f: put(f, "tokenizer_config.json", chat_template=TEMPLATE),
    "tokenizer_config.json, named": lambda f: put(
        f, "tokenizer_config.json", chat_template=[{"name": "default", "template": TEMPLATE}]
    ),
}


@pytest.mark.parametrize("place", TEMPLATE_PLACES)
def test_templates_are_found_wherever_they_stand(tmp_path: Path, spoken: Path, place: str) -> None:
    TEMPLATE_PLACES[place](spoken)
    run(spoken, tmp_path / "dest")
    text = Text.load(tmp_path / "dest")
    assert list(text.render(MESSAGES).ids) == list(text.encode_prompt("[user]hello"))


ROPE_PLACES: dict[str, dict[str, Any]] = {
    "beside": {"rope_theta": 250000.0},
    "inside alone": {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}},
    "inside the older name": {"rope_theta": None, "rope_scaling": {"type": "default", "rope_theta": 250000.0}},
}


@pytest.mark.parametrize("place", ROPE_PLACES)
def test_rope_is_found_wherever_it_stands(tmp_path: Path, tensors: dict, place: str) -> None:
    config = {name: value for name, value in (MIXTRAL | ROPE_PLACES[place]).items() if value is not None}
    model = run(write_folder(tmp_path / "source", tensors, config), tmp_path / "dest")
    rope = Spec.from_json(model.spec).layers[0].mixer.rope
    assert rope is not None
    assert rope.theta == 250000.0


@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.parametrize("has", [True, False])
def test_a_head_of_its_own_is_the_weights_to_say(tmp_path: Path, tensors: dict, says: bool | None, has: bool) -> None:
    config = {name: value for name, value in MIXTRAL.items() if name != "tie_word_embeddings"}
    config |= {} if says is None else {"tie_word_embeddings": says}
    kept = {name: values for name, values in tensors.items() if has or name != "lm_head.weight"}
    source = write_folder(tmp_path / "source", kept, config)
    if says is False and not has:
        with pytest.raises(CorruptFileError, match=r"no tensor lm_head\.weight"):
            run(source, tmp_path / "dest")
        return
    model = run(source, tmp_path / "dest")
    assert ("head" in model.dense) == has
    assert Spec.from_json(model.spec).tied_head == (not has)


# --- what is left out, and what is not -------------------------------------------------------------------------------

LEFT_OUT = {
    "model.visual.blocks.0.attn.qkv.weight": "vision",
    "vision_tower.encoder.0.weight": "vision",
    "model.vision_model.embeddings.weight": "vision",
    "multi_modal_projector.linear_1.weight": "vision",
    "audio_tower.layers.0.fc1.weight": "audio",
    "mtp.layers.0.mlp.gate.weight": "next-token",
    "mtp.fc.weight": "next-token",
    "model.layers.0.self_attn.rotary_emb.inv_freq": "rotary-table",
    "model.layers.0.self_attn.q_proj.input_scale": "activation-scale",
    "model.layers.0.self_attn.q_proj.input_scale_ub": "activation-scale",
    "model.layers.0.block_sparse_moe.experts.w1_input_scale": "activation-scale",
    "model.layers.0.self_attn.k_proj.k_scale": "cache-scale",
    "model.layers.0.self_attn.attn.kv_scale": "cache-scale",
}


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_left_out_is_counted_by_purpose(tmp_path: Path, tensors: dict, shards: int) -> None:
    extra = dict.fromkeys(LEFT_OUT, np.ones((2, 3), np.float32))
    source = write_sharded_folder(tmp_path / "source", tensors | extra, shards)
    converted = convert(source, tmp_path / "dest", write_tokenizer=write_tokenizer)
    assert converted.left_out == Counter(LEFT_OUT.values())
    (note,) = converted.notes()
    assert "4 vision tensors" in note
    assert "1 audio tensor," in note
    assert open_model(tmp_path / "dest").manifest.provenance["left_out"] == converted.left_out
    run(write_folder(tmp_path / "plain", tensors), tmp_path / "without")
    for name in ("dense.safetensors", "experts-0-0.bank"):
        assert (tmp_path / "dest" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.self_attn.q_proj.weight",
        "model.layers.0.block_sparse_moe.experts.4.w1.weight",
        "model.layers.0.block_sparse_moe.shared_expert.w1.weight",
        "model.layers.0.input_layernorm.weight_2",
        "lm_head.bias",
        "score.weight",
    ],
)
def test_a_tensor_that_nothing_explains_stops_it(tmp_path: Path, tensors: dict, name: str) -> None:
    source = write_folder(tmp_path / "source", tensors | {name: np.ones((2, 2), np.float32)})
    with pytest.raises(UnsupportedError, match=re.escape(name)):
        run(source, tmp_path / "dest")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.1.block_sparse_moe.gate.weight",
        "model.layers.0.block_sparse_moe.experts.3.w2.weight",
    ],
)
def test_a_tensor_that_is_missing_stops_it(tmp_path: Path, tensors: dict, name: str) -> None:
    source = write_sharded_folder(tmp_path / "source", {n: values for n, values in tensors.items() if n != name}, 2)
    with pytest.raises(CorruptFileError, match=re.escape(name)) as caught:
        run(source, tmp_path / "dest")
    assert "shard" in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
