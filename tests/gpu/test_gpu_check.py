"""The check for machines with a GPU, tried on the simulated device: every part runs, and a wrong bit is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import gpu_check

# The others start the program, which tests of its own do.
PARTS = [part.__name__ for part in gpu_check.PARTS if part not in (gpu_check.probe, gpu_check.end_to_end)]


def test_every_row_is_good(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    only = [word for part in PARTS for word in ("--only", part)]
    assert gpu_check.main(["--device", "sim", "--json", str(table), *only]) == 0
    rows = json.loads(table.read_text())
    assert all(row["good"] for row in rows)
    assert {row["what"] for row in rows} >= {"products, bits against the CPU", "filled slots hold their records"}


def test_a_wrong_bit_and_a_failing_part_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "_product", lambda driver, kind, matrix, x: np.zeros((11, 150), np.float32))
    only = ["--only", "product_bits", "--only", "plan_cost"]
    assert gpu_check.main(["--device", "sim", *only]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  products, bits against the CPU" in printed
    assert "linear_many_q4_k" in printed
    assert "ok    plan, 256 slots" in printed
