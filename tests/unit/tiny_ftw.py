"""A tiny FTW folder made by the writer from weights that a formula gives, so that it never changes.

`python -m tests.unit.tiny_ftw FOLDER` writes it; tests/unit/golden/tiny.ftw holds it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from engine.files.codecs import CODECS, FORMS
from engine.files.conversion.gather import Gather
from engine.files.conversion.packing import native_pack
from engine.files.conversion.partial import Partial
from engine.files.conversion.plan import Plan, describe, make_plan
from engine.files.conversion.stream import Pace, stream
from engine.files.ftw.manifest import MANIFEST_NAME, FileInfo, Manifest, write_manifest
from engine.files.sources.tensors import MemoryTensor
from engine.spec.layout import ExpertRecord, Layout, Matrix, Piece, Vector

EXPERTS = 2
HIDDEN, WIDTH = 32, 64


def raw_weights(codec: str, rows: int, cols: int, seed: int) -> npt.NDArray[np.uint8]:
    """Raw rows with finite scales: byte i of the tensor is (i * 37 + seed * 11) mod 97."""
    row_bytes = FORMS[codec].row_bytes(cols)
    numbers = np.arange(rows * row_bytes) * 37 + seed * 11
    return (numbers % 97).astype(np.uint8).reshape(rows, row_bytes)


def tensor(codec: str, shape: tuple[int, ...], seed: int) -> MemoryTensor:
    rows = int(np.prod(shape[:-1]))
    return MemoryTensor(codec, shape, raw_weights(codec, rows, shape[-1], seed))


TENSORS = {
    "embed": tensor("bf16", (20, HIDDEN), 1),
    "norm": tensor("f32", (HIDDEN,), 2),
    "bias": tensor("f16", (5,), 3),
} | {
    f"{name}.{layer}.{expert}": tensor(codec, (HIDDEN, WIDTH) if name == "down" else (WIDTH, HIDDEN), number)
    for layer, codec in enumerate(("q4_0", "q8_0", "q4_0"))
    for expert in range(EXPERTS)
    for number, name in enumerate(("gate", "up", "down"), start=10 * layer + 3 * expert)
}


def record(layer: int, expert: int) -> ExpertRecord:
    matrices = []
    for name in ("gate", "up", "down"):
        rows, cols = (HIDDEN, WIDTH) if name == "down" else (WIDTH, HIDDEN)
        matrices.append(Matrix(name, rows, cols, (Piece(f"{name}.{layer}.{expert}"),)))
    return ExpertRecord(layer, expert, tuple(matrices))


LAYOUT = Layout(
    matrices=(Matrix("embed", 20, HIDDEN, (Piece("embed"),)),),
    vectors=(Vector("final_norm", HIDDEN, (Piece("norm"),)), Vector("odd_bias", 5, (Piece("bias"),))),
    experts=tuple(record(layer, expert) for layer in range(3) for expert in range(EXPERTS)),
)
RECORDS_A_SHARD = 3


def plan() -> Plan:
    """Two banks, since layer 1 is in another codec; the first in two shards."""
    q4_0_record = 2 * CODECS["q4_0"].packed_bytes(WIDTH, HIDDEN) + CODECS["q4_0"].packed_bytes(HIDDEN, WIDTH)
    return make_plan(LAYOUT, Gather(TENSORS), (), max_shard_bytes=RECORDS_A_SHARD * (-(-q4_0_record // 4096) * 4096))


def write_tiny_ftw(folder: Path) -> None:
    """Writes the folder, which must not be there yet."""
    planned = plan()
    with Partial(folder, {"source": "a formula"}, force=True) as partial:
        stream(planned, Gather(TENSORS), (), partial, lambda done, total: None, native_pack, Pace())
        note = b"A tiny model whose bytes never change.\n"
        (partial.folder / "note.txt").write_bytes(note)
        dense, banks = describe(planned, partial.hashes)
        manifest = Manifest(
            spec={"hidden_size": HIDDEN},
            dense=dense,
            dense_bytes=planned.sizes["dense.safetensors"],
            banks=banks,
            files={"note.txt": FileInfo(len(note), xxhash.xxh3_128_hexdigest(note))},
            provenance={"tool": "a test"},
        )
        (partial.folder / MANIFEST_NAME).write_bytes(write_manifest(manifest))
        partial.finish(planned.sizes, replace=False)


if __name__ == "__main__":
    write_tiny_ftw(Path(sys.argv[1]))
