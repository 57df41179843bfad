"""What the tests of pulling share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.hub.listing import fetch_listing
from engine.files.hub.patience import Rules
from engine.files.hub.session import connect
from engine.files.pulling.cost import Cost
from engine.files.pulling.pull import pull
from engine.files.store import Store
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors

REPO = "someone/Tiny-MoE"
QUICK = Rules(tries=4)


class Interrupted(Exception):
    """Stands for whatever ends a pull from outside."""


def contents(folder: Path) -> dict[str, bytes]:
    """All files; of the manifest everything but where the model came from, and its own hash."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(files.pop(MANIFEST_NAME))
    del manifest["provenance"], manifest["hash"]
    return files | {MANIFEST_NAME: json.dumps(manifest, sort_keys=True).encode()}


def pull_it(tmp_path: Path, what: str = REPO, **options: Any) -> Path:
    defaults: dict[str, Any] = {
        "write_tokenizer": lambda metadata, folder: None,
        "progress": lambda phase, done, total: None,
    }
    return pull(what, Store(tmp_path / "store"), **(defaults | options)).folder


def interrupt(cost: Cost) -> None:
    raise Interrupted


def until(limit: int) -> Callable[[str, int, int], None]:
    """Progress that ends a pull when so many bytes came and were written."""

    def progress(phase: str, done: int, total: int) -> None:
        if done >= limit:
            raise Interrupted

    return progress


def in_cache(cache: Path, commit: str, files: dict[str, bytes]) -> Path:
    """Lays files out as huggingface_hub does: links into a folder of blobs that are named by their hashes."""
    folder = cache / "models--someone--Tiny-MoE"
    snapshot = folder / "snapshots" / commit
    for made in (snapshot, folder / "blobs", folder / "refs"):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    digests = {file.path: file.digest for file in fetch_listing(connect(), REPO, "main").files}
    for path, content in files.items():
        blob = folder / "blobs" / digests[path]
        blob.write_bytes(content)
        (snapshot / path).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def by_layer(layers: int = 4) -> dict[str, bytes]:
    """The files of a model with a shard of 1.6 MB for each layer, and a small one before and after them."""
    config = MIXTRAL | {"num_hidden_layers": layers, "intermediate_size": 512}
    groups: dict[str, dict[str, Any]] = {}
    for name, values in mixtral_tensors(config).items():
        layer = name.split(".")[2] if ".layers." in name else ("first" if "embed" in name else "last")
        groups.setdefault(layer, {})[name] = values
    order = ["first", *map(str, range(layers)), "last"]
    shards = {
        f"model-{number:05d}-of-{len(order):05d}.safetensors": groups[group] for number, group in enumerate(order, 1)
    }
    index = {name: shard for shard, group in shards.items() for name in group}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"model": {}}',
        "model.safetensors.index.json": json.dumps({"weight_map": index}).encode(),
    } | {shard: save(group) for shard, group in shards.items()}


def bytes_below(folder: Path) -> int:
    """Bytes of the files in a folder in which somebody is at work."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
