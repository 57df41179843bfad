"""FTW folders that lie: each is the golden folder after one change, with what the error must say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.files.ftw.manifest import seal

Change = Callable[[Path], None]
MISSING = object()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes ftw.json and seals it again, as somebody who means harm would."""
    path = folder / "ftw.json"
    content = json.loads(path.read_bytes())
    del content["hash"]
    change(content)
    path.write_bytes(seal({name: json.dumps(value) for name, value in content.items()}))


def put(*keys: str | int, value: Any = MISSING) -> Change:
    """Sets, or without a value removes, what lies at `keys` of ftw.json."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        if value is MISSING:
            del content[keys[-1]]
        else:
            content[keys[-1]] = value

    return lambda folder: rewrite(folder, change)


def resize(name: str, by: int) -> Change:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size + by)


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def replace_by_pipe(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def overwrite(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def edit(name: str, old: bytes, new: bytes) -> Change:
    """Replaces bytes of a file by as many others."""

    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new))

    return change


_BANK = ("banks", 0)
_SHARD = ("banks", 0, "shards", 0)
_EMBED = ("dense", "tensors", "embed")

# name: change, type of the error, what it must say
FTW_FOLDERS: dict[str, tuple[Change, str, str]] = {
    "no manifest": (remove("ftw.json"), "NotFoundError", "no ftw.json"),
    "a manifest that is a pipe": (replace_by_pipe("ftw.json"), "CorruptFileError", "not a regular file"),
    "an empty manifest": (overwrite("ftw.json", b""), "CorruptFileError", "is empty"),
    "another format": (put("format", value="gguf"), "CorruptFileError", "its format is 'gguf'"),
    "an earlier version": (put("version", value=1), "UnsupportedError", "FTW version 1"),
    "a later version": (put("version", value=3), "UnsupportedError", "FTW version 3"),
    "a version that is text": (put("version", value="1"), "CorruptFileError", "version is '1'"),
    "a version that is true": (put("version", value=True), "CorruptFileError", "version is True"),
    "an altered manifest": (edit("ftw.json", b'"a test"', b'"a joke"'), "CorruptFileError", "was altered"),
    "a cut manifest": (resize("ftw.json", -2), "CorruptFileError", "not valid JSON"),
    "no spec": (put("spec"), "CorruptFileError", "lacks 'spec'"),
    "a spec that is a list": (put("spec", value=[]), "CorruptFileError", "not an object"),
    "no banks": (put("banks"), "CorruptFileError", "lacks 'banks'"),
    "banks that are an object": (put("banks", value={}), "CorruptFileError", "not a list"),
    "a bank that is a number": (put(*_BANK, value=7), "CorruptFileError", "not an object"),
    "a missing layer": (put(*_BANK, "layers", value=[0, 3]), "CorruptFileError", "each MoE layer once"),
    "a layer twice": (put(*_BANK, "layers", value=[0, 1]), "CorruptFileError", "each MoE layer once"),
    "layers that descend": (put(*_BANK, "layers", value=[2, 0]), "CorruptFileError", "must ascend"),
    "a negative layer": (put(*_BANK, "layers", value=[-1, 2]), "CorruptFileError", "layers holds -1"),
    "no experts": (put(*_BANK, "experts_per_layer", value=0), "CorruptFileError", "experts_per_layer is 0"),
    "more experts than records": (put(*_BANK, "experts_per_layer", value=3), "CorruptFileError", "4 records"),
    "records that are not aligned": (put(*_BANK, "record_bytes", value=4100), "CorruptFileError", "fields need 4096"),
    "records of no size": (put(*_BANK, "record_bytes", value=0), "CorruptFileError", "record_bytes is 0"),
    "records beyond all bounds": (put(*_BANK, "record_bytes", value=1 << 80), "CorruptFileError", "record_bytes is"),
    "no fields": (put(*_BANK, "fields", value=[]), "CorruptFileError", "fields must be there"),
    "a field twice": (put(*_BANK, "fields", 1, "name", value="gate_up"), "CorruptFileError", "fields"),
    "a hole between fields": (put(*_BANK, "fields", 1, "offset", value=2624), "CorruptFileError", "leaves a hole"),
    "fields that overlap": (put(*_BANK, "fields", 1, "offset", value=64), "CorruptFileError", "overlaps"),
    "a field of an unknown codec": (put(*_BANK, "fields", 0, "codec", value="q9"), "UnsupportedError", "codec 'q9'"),
    "a field of half a block": (put(*_BANK, "fields", 0, "cols", value=33), "CorruptFileError", "whole blocks"),
    "a field without rows": (put(*_BANK, "fields", 0, "rows", value=0), "CorruptFileError", "rows is 0"),
    "a field of more rows": (put(*_BANK, "fields", 0, "rows", value=80), "CorruptFileError", "overlaps"),
    "a shard outside the folder": (put(*_SHARD, "file", value="../a.bank"), "CorruptFileError", "no plain file name"),
    "a shard at an absolute path": (
        put(*_SHARD, "file", value="/etc/passwd"),
        "CorruptFileError",
        "no plain file name",
    ),
    "a shard with a hidden name": (put(*_SHARD, "file", value="..bank"), "CorruptFileError", "no plain file name"),
    "a shard without a name": (put(*_SHARD, "file", value=""), "CorruptFileError", "no plain file name"),
    "a shard named twice": (put(*_SHARD, "file", value="experts-0-1.bank"), "CorruptFileError", "two different"),
    "a shard named like the manifest": (put(*_SHARD, "file", value="ftw.json"), "CorruptFileError", "two different"),
    "a shard of another size": (put(*_SHARD, "bytes", value=8192), "CorruptFileError", "not 3 records"),
    "a hash too few": (put(*_SHARD, "hashes", value="0" * 64), "CorruptFileError", "not 2 records"),
    "half a hash": (put(*_SHARD, "hashes", value="0" * 80), "CorruptFileError", "hexadecimal"),
    "a hash in capitals": (put(*_EMBED, "hash", value="A" * 32), "CorruptFileError", "hexadecimal"),
    "a hash that is null": (put(*_EMBED, "hash", value=None), "CorruptFileError", "not a string"),
    "dense tensors in another file": (put("dense", "file", value="../x"), "CorruptFileError", "instead of dense"),
    "a dense tensor of another shape": (put(*_EMBED, "rows", value=200), "CorruptFileError", "tensor embed is U8"),
    "a dense matrix that is a vector": (
        put(*_EMBED, value={"length": 512, "hash": "0" * 32}),
        "CorruptFileError",
        "tensor embed is U8",
    ),
    "a dense tensor that is not in the file": (
        put("dense", "tensors", "more", value={"length": 4, "hash": "0" * 32}),
        "CorruptFileError",
        "disagree about the tensor 'more'",
    ),
    "a dense tensor that only the file has": (put(*_EMBED), "CorruptFileError", "disagree about the tensor 'embed'"),
    "a tensor name of control characters": (
        put("dense", "tensors", "\x1b[2J", value={"length": 4, "hash": "0" * 32}),
        "CorruptFileError",
        "impossible name",
    ),
    "a file outside the folder": (
        put("files", "../../x", value={"bytes": 1, "hash": "0" * 32}),
        "CorruptFileError",
        "no plain file name",
    ),
    "a file that is missing": (remove("note.txt"), "CorruptFileError", r"note\.txt is missing"),
    "a file that is longer": (resize("note.txt", 1), "CorruptFileError", r"note\.txt is too long"),
    "a short shard": (resize("experts-0-0.bank", -1), "CorruptFileError", r"experts-0-0\.bank is short"),
    "a long shard": (resize("experts-0-1.bank", 4096), "CorruptFileError", r"experts-0-1\.bank is too long"),
    "a missing shard": (remove("experts-1-1.bank"), "CorruptFileError", r"experts-1-1\.bank is missing"),
    "a shard that is a pipe": (replace_by_pipe("experts-1-0.bank"), "CorruptFileError", "not a regular file"),
    "short dense tensors": (resize("dense.safetensors", -64), "CorruptFileError", r"dense\.safetensors is short"),
    "dense tensors whose header is cut": (
        edit("dense.safetensors", b'"embed"', b'"embed}'),
        "CorruptFileError",
        r"dense\.safetensors is not valid JSON",
    ),
    "dense tensors under another name": (
        edit("dense.safetensors", b'"embed"', b'"umbed"'),
        "CorruptFileError",
        "disagree about the tensor",
    ),
    "dense tensors that are not aligned": (
        edit("dense.safetensors", (4088).to_bytes(8, "little") + b"{", (4087).to_bytes(8, "little") + b"{"),
        "CorruptFileError",
        r"dense\.safetensors",
    ),
}
