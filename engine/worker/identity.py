"""What a saved context must agree with."""

from __future__ import annotations

from pathlib import Path

import xxhash

from engine import __version__
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.untrusted import read_small_file
from engine.memory.pages import PAGE_TOKENS
from engine.program.ir import KV_DTYPE, Program
from engine.worker.context_file import ContextIdentity


def identity_of(folder: Path, program: Program, device: str) -> ContextIdentity:
    """The identity of contexts that `program` of the model in `folder` computes on `device`.

    The manifest holds the hashes of all weights. How much context there is does not matter, unless it changes the
    program.
    """
    layout = repr((program, KV_DTYPE, PAGE_TOKENS)).encode()
    return ContextIdentity(
        model=folder.name,
        weights=xxhash.xxh3_128_hexdigest(read_small_file(folder / MANIFEST_NAME)),
        program=xxhash.xxh3_128_hexdigest(layout),
        device=device,
        release=__version__,
    )
