"""One table bounds every number of sampling, whoever gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import CorruptFileError, UsageError
from engine.base.sampling import OF_MODEL, PARAMETERS, Parameter
from engine.front.openai_api.requests import read_completion
from engine.front.wire.fields import FieldError
from engine.front.workers.defaults import read_defaults
from engine.worker.protocol import Sampling


def beyond(parameter: Parameter) -> list[Any]:
    allowed = parameter.range
    return [allowed.low - 1, allowed.high + 1, "1", True, [], *([0.5] if allowed.whole else [])]


def completion(**members: Any) -> Any:
    return read_completion({"model": "m", "prompt": "p", **members})


def write(folder: Path, **members: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 5, **members}))
    return folder


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_ends_of_a_range_are_in_it_and_nothing_beyond(name: str) -> None:
    parameter = PARAMETERS[name]
    for value in (parameter.range.low, parameter.range.high):
        assert completion(**{name: value}).values[name] == value
    for value in beyond(parameter):
        with pytest.raises(FieldError, match=f"^{name}: "):
            completion(**{name: value})


@pytest.mark.parametrize("name", OF_MODEL)
def test_a_models_own_settings_are_held_to_the_same_bounds(name: str, tmp_path: Path) -> None:
    high = PARAMETERS[name].range.high
    assert read_defaults(write(tmp_path, **{name: high})) == {name: high}
    for value in beyond(PARAMETERS[name]):
        with pytest.raises(CorruptFileError, match=f": {name}: "):
            read_defaults(write(tmp_path, **{name: value}))


def test_a_request_beats_the_model_and_the_model_the_standard(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == {}
    assert read_defaults(write(tmp_path, top_k=50.0)) == {"top_k": 50}
    defaults = read_defaults(write(tmp_path, temperature=0.6, top_k=-1, top_p=None, frequency_penalty=1))
    assert defaults == {"temperature": 0.6, "top_k": -1}
    assert completion().sampling(0, {}, 5) == Sampling(seed=5)
    assert completion().sampling(0, defaults, 5) == Sampling(temperature=0.6, top_k=0, seed=5)
    asked = completion(temperature=0, top_k=7, presence_penalty=-1).sampling(2, defaults, 5)
    assert asked == Sampling(temperature=0, top_k=7, presence_penalty=-1, seed=5, choice=2)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_file_that_is_no_object_is_damage(content: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(CorruptFileError, match=r"generation_config\.json is (not|empty)") as caught:
        read_defaults(tmp_path)
    assert "get the model again" in caught.value.remedy


def test_the_command_line_has_the_same_bounds() -> None:
    from freetoken_cli.chat import SAMPLING

    for name in SAMPLING.keys() & PARAMETERS.keys():
        allowed = PARAMETERS[name].range
        for value in (allowed.low, allowed.high):
            assert SAMPLING[name](str(value)) == value
        for value in (allowed.low - 1, allowed.high + 1):
            with pytest.raises(UsageError):
                SAMPLING[name](str(value))
