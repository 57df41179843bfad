"""Fixtures of the tests of conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpoints import mixtral_tensors, write_folder


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return mixtral_tensors()


@pytest.fixture
def source(tmp_path: Path, tensors: dict) -> Path:
    return write_folder(tmp_path / "source", tensors)
