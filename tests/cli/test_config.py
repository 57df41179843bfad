"""Layers of settings: which one wins, and what a bad value in each is told."""

import os
from pathlib import Path

import pytest

from engine.base.config import SETTINGS, Config, read_config_file, resolve
from engine.base.errors import UsageError
from engine.base.units import KvBudget


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default() -> None:
    file = {"threads": "1", "context": "1k", "port": "1000"}
    environment = {"FREETOKEN_THREADS": "2", "FREETOKEN_CONTEXT": "2k"}
    config = resolve({"threads": "3", "context": None}, environment, file)
    assert (config.threads, config.context, config.port, config.host) == (3, 2048, 1000, Config().host)
    assert config.explicit == {"threads"}


def test_an_empty_variable_counts_as_unset() -> None:
    assert resolve({}, {"FREETOKEN_KV": ""}, {"kv": "8k"}).kv == KvBudget(tokens=8192)


@pytest.mark.parametrize(
    ("flags", "environment", "file", "where"),
    [
        ({"kv": "32q"}, {}, {}, "--kv: '32q'"),
        ({}, {"FREETOKEN_KEEP_ALIVE": "soon"}, {}, "FREETOKEN_KEEP_ALIVE: 'soon'"),
        ({}, {}, {"threads": "0"}, "threads in the config file: '0'"),
        ({"device": "cdua"}, {}, {}, "--device: 'cdua'"),
        ({"port": "65536"}, {}, {}, "--port: '65536'"),
        ({"threads": "9" * 5000}, {}, {}, "--threads: '999"),
        ({}, {"FREETOKEN_API_KEY": "two\nlines"}, {}, "FREETOKEN_API_KEY: 'two\\nlines'"),
    ],
)
def test_a_bad_value_is_named_with_its_layer(
    flags: dict[str, str], environment: dict[str, str], file: dict[str, str], where: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags, environment, file)
    assert caught.value.message.startswith(where)
    assert caught.value.exit_code == 2


def test_a_value_that_loses_is_not_read() -> None:
    assert resolve({"threads": "2"}, {"FREETOKEN_THREADS": "many"}, {"threads": "none"}).threads == 2


def test_config_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert read_config_file(path) == {}
    path.write_text('threads = 2\nkv = "32k"\n')
    assert read_config_file(path) == {"threads": "2", "kv": "32k"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"threds = 2", ["threds", "threads"]),
        (b"threads = [2]", ["threads", "list"]),
        (b"threads = true", ["threads", "bool"]),
        (b"threads = ", ["not valid TOML"]),
        (b"\xff", ["not valid TOML"]),
    ],
)
def test_a_bad_config_file_is_named(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_config_file(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_config_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_config_file(path)


def test_every_setting_is_a_field_of_config() -> None:
    assert {item.name for item in SETTINGS} | {"explicit"} == set(Config.__dataclass_fields__)


def test_names_are_parted_by_commas() -> None:
    variables = {"FREETOKEN_ALLOWED_HOSTS": "box.lan, box", "FREETOKEN_ALLOWED_ORIGINS": "https://chat.example"}
    config = resolve({}, variables, {})
    assert (config.allowed_hosts, config.allowed_origins) == (("box.lan", "box"), ("https://chat.example",))
    with pytest.raises(UsageError, match="FREETOKEN_ALLOWED_HOSTS"):
        resolve({}, {"FREETOKEN_ALLOWED_HOSTS": "box,,lan"}, {})
