"""Checkpoints under the names of transformers' own modules, as a fine-tune may be saved, are read as published ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .cases import CASES
from .layout_weights import LayoutWeights
from .tiny import save

RENAMED = {
    case.family: case
    for case in CASES
    if case.family
    in ("ernie4_5_moe", "exaone_moe", "granitemoe", "granitemoehybrid", "granitemoeshared", "hy_v3", "minimax_m2")
    and "odd" in case.name
}


@pytest.mark.parametrize("family", RENAMED)
def test_both_names_give_the_same_model(family: str, tmp_path: Path) -> None:
    model = save(RENAMED[family], tmp_path / "published")
    model.save_pretrained(tmp_path / "own", save_original_format=False)  # type: ignore[operator]
    published, own = LayoutWeights(tmp_path / "published"), LayoutWeights(tmp_path / "own")
    assert published.spec == own.spec
    for name in published.dense_names:
        assert np.array_equal(published.dense(name), own.dense(name)), name
    for layer, expert in published.expert_names:
        ours, theirs = own.expert(layer, expert), published.expert(layer, expert)
        assert all(np.array_equal(ours[name], values) for name, values in theirs.items()), (layer, expert)
