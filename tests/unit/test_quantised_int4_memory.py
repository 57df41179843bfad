"""Checkpoints of 4-bit integers are converted in the memory that others take: that of one expert."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.files.conversion.packing import CHUNK_BYTES
from engine.files.conversion.stream import Pace
from tests.unit.converting import run
from tests.unit.test_convert_memory import Counted, Shapes, expert_bytes, qwen, write_sparse_folder

GROUP = 128


def write_int4(folder: Path, layout: str, moved: bool) -> Path:
    """A model of zeros but for its orders; experts of 3 MB, and a dense matrix of 16 MB."""
    config, shapes = qwen(2, 6, 96, hidden_size=2048, moe_intermediate_size=1024, num_attention_heads=1024)
    types: dict[str, str] = {}
    for name in [name for name in shapes if ".experts." in name or name.endswith("q_proj.weight")]:
        rows, cols = shapes.pop(name)
        parts, part_types = int4_parts(name.removesuffix("weight"), rows, cols, layout, moved)
        shapes |= parts
        types |= part_types
    method = {"gptq": {"desc_act": moved}, "awq": {"version": "gemm"}}[layout]
    config |= {"quantization_config": {"quant_method": layout, "bits": 4, "group_size": GROUP, **method}}
    write_sparse_folder(folder, config, shapes, types)
    if moved:
        write_orders(folder / "model.safetensors")
    return folder


def int4_parts(stem: str, rows: int, cols: int, layout: str, moved: bool) -> tuple[Shapes, dict[str, str]]:
    codes = (cols // 8, rows) if layout == "gptq" else (cols, rows // 8)
    shapes = {
        f"{stem}qweight": codes,
        f"{stem}qzeros": (cols // GROUP, rows // 8),
        f"{stem}scales": (cols // GROUP, rows),
    }
    types = {f"{stem}qweight": "I32", f"{stem}qzeros": "I32", f"{stem}scales": "F16"}
    if moved:
        shapes[f"{stem}g_idx"] = (cols,)
        types[f"{stem}g_idx"] = "I32"
    return shapes, types


def write_orders(path: Path) -> None:
    random = np.random.default_rng(0)
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        entries: dict[str, Any] = json.loads(file.read(size))
        for name, entry in entries.items():
            if name.endswith("g_idx"):
                file.seek(8 + size + entry["data_offsets"][0])
                file.write(random.permutation(np.arange(entry["shape"][0]) // GROUP).astype(np.int32).tobytes())


@pytest.mark.parametrize(("layout", "moved"), [("gptq", False), ("gptq", True), ("awq", False)])
def test_one_expert_or_some_columns_are_held(tmp_path: Path, monkeypatch: Any, layout: str, moved: bool) -> None:
    monkeypatch.setattr("engine.files.sources.quantised.stripes.STRIPE_BYTES", 1 << 20)
    source = write_int4(tmp_path / "source", layout, moved)
    expert = expert_bytes(source)
    assert 3 << 20 < expert < 4 << 20
    monkeypatch.setattr("engine.files.sources.safetensors.folder.LocalFile", Counted)
    monkeypatch.setattr(Counted, "held", 0)
    monkeypatch.setattr(Counted, "most", 0)
    peaks: list[int] = []

    def progress(_done: int, _total: int) -> None:
        if not peaks:
            tracemalloc.reset_peak()
            Counted.most = 0
        peaks.append(tracemalloc.get_traced_memory()[1])

    tracemalloc.start()
    try:
        run(source, tmp_path / "dest", progress=progress, pace=Pace())
    finally:
        tracemalloc.stop()
    assert Counted.most <= expert + CHUNK_BYTES
    assert Counted.held == 0
    assert peaks[-1] - peaks[0] < 4 * (expert + CHUNK_BYTES)
