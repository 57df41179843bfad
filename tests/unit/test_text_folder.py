"""Reading the text files of a checkpoint: every end token, added tokens, and files that are not what they seem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import text_models
from transformers import PreTrainedTokenizerFast

from engine.base.errors import CorruptFileError, FreetokenError, NotFoundError
from engine.text.text import Text

ENDS = ("<|end_a|>", "<|end_b|>", "<|end_c|>", "<|end_d|>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = text_models.byte_level(300)
    tokenizer.add_special_tokens(text_models.special(*ENDS, "<s>"))
    return text_models.save(tmp_path, tokenizer, None, bos_token="<s>")


def put(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def ends(folder: Path) -> set[str]:
    text = Text.load(folder)
    return {text.token_bytes(token).decode() for token in text.eos_ids}


def test_every_end_token(folder: Path) -> None:
    """A number, a list, inside a text model's own config, and a name: all of them count."""
    first = 300
    assert ends(folder) == set()
    put(folder, "config.json", eos_token_id=first)
    assert ends(folder) == {ENDS[0]}
    put(folder, "generation_config.json", eos_token_id=[first + 1, first])
    assert ends(folder) == {ENDS[0], ENDS[1]}
    put(folder, "config.json", text_config={"eos_token_id": [first + 2]})
    assert ends(folder) == {ENDS[0], ENDS[1], ENDS[2]}
    put(folder, "tokenizer_config.json", eos_token={"content": ENDS[3], "__type": "AddedToken"})
    assert ends(folder) == set(ENDS)
    put(folder, "tokenizer_config.json")
    put(folder, "special_tokens_map.json", eos_token=ENDS[3])
    assert ends(folder) == set(ENDS)


def test_end_token_that_the_vocabulary_lacks(folder: Path) -> None:
    put(folder, "tokenizer_config.json", eos_token="<nowhere>")
    with pytest.raises(CorruptFileError, match="'<nowhere>' as its end token"):
        Text.load(folder)
    put(folder, "generation_config.json", eos_token_id=300)
    assert ends(folder) == {ENDS[0]}, "another file names one that is there"


def test_added_tokens_of_the_config(folder: Path) -> None:
    """Tokens that only tokenizer_config.json adds, and names of tokens that are ordinary in tokenizer.json."""
    size = 300 + len(ENDS) + 1
    entry = {"content": "<|new|>", "special": True, "lstrip": False, "rstrip": True, "normalized": False}
    put(
        folder,
        "tokenizer_config.json",
        added_tokens_decoder={str(size): entry},
        pad_token="he",
        chat_template="<|new|>",
    )
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    text = Text.load(folder)
    for raw in ("a<|new|>  b", "hhe", "<|end_a|>x"):
        assert text.encode_prompt(raw) == reference(raw)["input_ids"]
    assert text.render([{"role": "user", "content": "x"}]).ids == [size]
    assert text.encode("he") != [reference.pad_token_id], "named tokens are special, so text does not make them"
    entry["content"] = "<|other|>"
    put(folder, "tokenizer_config.json", added_tokens_decoder={str(size + 9): entry})
    with pytest.raises(CorruptFileError, match=f"'<|other|>' is token {size + 9}".replace("|", r"\|")):
        Text.load(folder)


def test_template_variables(folder: Path) -> None:
    """Named tokens are variables of the template, those of the model's own too, as in transformers."""
    names = ("bos_token", "eos_token", "pad_token", "image_token", "nothing")
    template = "-".join("{{ " + name + " }}" for name in names)
    extra = {"image_token": ENDS[1]}
    put(
        folder,
        "tokenizer_config.json",
        bos_token="<s>",
        eos_token=ENDS[0],
        extra_special_tokens=extra,
        chat_template=template,
    )
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    user = [{"role": "user", "content": "x"}]
    expected = reference.apply_chat_template(user, tokenize=False)
    assert expected == f"<s>-{ENDS[0]}--{ENDS[1]}-"
    assert Text.load(folder).render(user).text == expected


def test_truncation_and_padding_in_the_file(tmp_path: Path) -> None:
    tokenizer = text_models.byte_level(300)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    text = Text.load(text_models.save(tmp_path, tokenizer, None))
    ids = text.encode("more than four tokens")
    assert text.decode(ids) == "more than four tokens"
    assert text.encode_prompt("more than four tokens") == ids


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no tokenizer\.json"):
        Text.load(tmp_path)
    with pytest.raises(NotFoundError):
        Text.load(tmp_path / "nowhere")


SPOILED: dict[str, Callable[[Path], object]] = {
    "cut tokenizer": lambda folder: os.truncate(folder / "tokenizer.json", 1000),
    "empty tokenizer": lambda folder: os.truncate(folder / "tokenizer.json", 0),
    "tokenizer of another kind": lambda folder: put(folder, "tokenizer.json", model={}),
    "cut config": lambda folder: (folder / "tokenizer_config.json").write_text('{"bos'),
    "config of bytes": lambda folder: (folder / "tokenizer_config.json").write_bytes(b"\xff\xfe\x00"),
    "config that is a list": lambda folder: (folder / "tokenizer_config.json").write_text("[1]"),
    "deep config": lambda folder: (folder / "tokenizer_config.json").write_text("[" * 100_000),
    "token that is a number": lambda folder: put(folder, "tokenizer_config.json", bos_token=7),
    "special tokens that are a number": lambda folder: put(folder, "tokenizer_config.json", extra_special_tokens=7),
    "added tokens as a list": lambda folder: put(folder, "tokenizer_config.json", added_tokens_decoder=["x"]),
    "added token without text": lambda folder: put(folder, "tokenizer_config.json", added_tokens_decoder={"9": {}}),
    "added token by name": lambda folder: put(
        folder, "tokenizer_config.json", added_tokens_decoder={"x": {"content": "a"}}
    ),
    "template that is a number": lambda folder: put(folder, "tokenizer_config.json", chat_template=7),
    "templates without names": lambda folder: put(folder, "tokenizer_config.json", chat_template=[{"template": "x"}]),
    "no templates": lambda folder: put(folder, "tokenizer_config.json", chat_template=[]),
    "template of bytes": lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"),
    "end that is a word": lambda folder: put(folder, "generation_config.json", eos_token_id="</s>"),
    "end below zero": lambda folder: put(folder, "generation_config.json", eos_token_id=[-1]),
    "end that is true": lambda folder: put(folder, "config.json", eos_token_id=True),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_files_are_named(folder: Path, name: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    SPOILED[name](folder)
    changed = next(path.name for path in folder.iterdir() if before.get(path.name) != path.read_bytes())
    with pytest.raises(CorruptFileError, match=changed) as caught:
        Text.load(folder)
    assert caught.value.remedy


def test_threads_share_one_text(tmp_path: Path) -> None:
    """Requests are rendered at the same time, each within a budget of its own."""
    text = Text.load(text_models.thinking(tmp_path))
    conversations = [[{"role": "user", "content": f"number {index} " * 50}] for index in range(40)]
    expected = [text.render(conversation).ids for conversation in conversations]
    fresh = Text.load(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda conversation: fresh.render(conversation).ids, conversations)) == expected


def test_imports_are_late() -> None:
    """The room's import costs nothing that a command would feel, and never brings torch or transformers."""
    heavy = ("torch", "transformers", "numpy", "tokenizers", "jinja2", "gguf")
    code = f"import sys, engine.text.text, engine.text.gguf_tokenizer; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_loading_leaves_jinja2_for_the_first_chat(tmp_path: Path) -> None:
    text_models.chatml(tmp_path)
    code = (
        "import sys, pathlib; from engine.text.text import Text; text = Text.load(pathlib.Path(sys.argv[1]));"
        "ids = text.encode_prompt('x'); print('jinja2' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False False"


def test_errors_are_sentences(folder: Path) -> None:
    put(folder, "tokenizer_config.json", eos_token="<nowhere>")
    with pytest.raises(FreetokenError) as caught:
        Text.load(folder)
    assert caught.value.message.endswith(".")
    assert caught.value.remedy.endswith(".")
