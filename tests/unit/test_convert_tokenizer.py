"""A model whose text cannot be turned into tokens: converted when it is asked for, never pulled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine.base.errors import NotFoundError, UnsupportedError
from engine.files.conversion.convert import convert
from engine.files.conversion.job import plan_job
from engine.files.pulling.pull import pull, pull_cost
from engine.files.pulling.target import find_target
from engine.files.sources.opening import open_checkpoint
from engine.files.store import Store
from tests.unit.checkpoints import mixtral_tensors, write_mixtral_gguf
from tests.unit.converting import write_tokenizer

LACKING: dict[str, tuple[list[str], str]] = {
    "none": ([], r"source has no tokenizer\.json: text"),
    "SentencePiece": (["tokenizer.model"], r"has no tokenizer\.json, only tokenizer\.model, which this release"),
    "tiktoken": (["tiktoken.model", "tokenizer_config.json"], r"only tiktoken\.model, which"),
    "the older files": (["vocab.json", "merges.txt"], r"only vocab\.json, which"),
}


def without_tokenizer(source: Path, case: str) -> str:
    """Leaves `source` with other files in the tokenizer's stead; what is said of it."""
    (source / "tokenizer.json").unlink()
    names, said = LACKING[case]
    for name in names:
        (source / name).write_text("{}")
    return said


@pytest.mark.parametrize("case", LACKING)
def test_it_is_refused_before_anything_is_announced_or_written(tmp_path: Path, source: Path, case: str) -> None:
    said = without_tokenizer(source, case)
    announced: list[Any] = []
    with pytest.raises(NotFoundError, match=said) as caught:
        pull(
            str(source),
            Store(tmp_path / "store"),
            write_tokenizer=write_tokenizer,
            progress=lambda *numbers: None,
            announce=announced.append,
        )
    assert "tokenizer.json" in caught.value.remedy
    assert announced == []
    assert not (tmp_path / "store").exists()
    with pytest.raises(NotFoundError, match=said):
        pull_cost(find_target(str(source)), write_tokenizer=write_tokenizer)


@pytest.mark.parametrize("case", LACKING)
def test_a_conversion_says_what_is_missing_and_keeps_what_is_there(tmp_path: Path, source: Path, case: str) -> None:
    said = without_tokenizer(source, case)
    converted = convert(source, tmp_path / "dest", write_tokenizer=write_tokenizer)
    assert converted.lacking in converted.notes()
    with pytest.raises(NotFoundError, match=said) as caught:
        plan_job(open_checkpoint(source))
    assert caught.value.message == converted.lacking
    for name in LACKING[case][0]:
        assert (tmp_path / "dest" / name).is_file()


def test_a_tokenizer_that_is_there_is_not_mentioned(tmp_path: Path, source: Path) -> None:
    assert convert(source, tmp_path / "dest", write_tokenizer=write_tokenizer).notes() == ()


def test_a_gguf_tokenizer_that_cannot_be_written_is_refused_before_anybody_agrees(tmp_path: Path) -> None:
    def refuse(metadata: Mapping[str, Any], folder: Path) -> None:
        raise UnsupportedError(f"The pre-tokenizer {metadata['tokenizer.ggml.pre']} is not known.")

    kind, pre = gguf.GGMLQuantizationType.F16, {"tokenizer.ggml.pre": "strange"}
    path = write_mixtral_gguf(tmp_path / "tiny.gguf", mixtral_tensors(), kind, **pre)
    announced: list[Any] = []
    with pytest.raises(UnsupportedError, match="pre-tokenizer"):
        pull_cost(find_target(str(path)), write_tokenizer=refuse)
    with pytest.raises(UnsupportedError, match="pre-tokenizer"):
        pull(
            str(path),
            Store(tmp_path / "store"),
            write_tokenizer=refuse,
            progress=lambda *numbers: None,
            announce=announced.append,
        )
    assert announced == []
