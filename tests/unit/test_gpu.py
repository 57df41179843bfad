"""Whether a GPU can be used, told without one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.base import config
from engine.base.errors import UnsupportedError
from engine.base.gpu import Missing, missing_for_cuda

DRIVER = """
int cuInit(unsigned flags) {{ return {init}; }}
int cuDeviceGetCount(int* count) {{ *count = {count}; return 0; }}
"""


def library(folder: Path, init: int = 0, count: int = 1) -> str:
    """A driver that says so."""
    source, built = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER.format(init=init, count=count))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return str(built)


def test_no_driver() -> None:
    found = missing_for_cuda("libno-such-driver.so")
    assert found == Missing(
        "there is no NVIDIA driver here (libno-such-driver.so)", "Run on the processor: --device cpu"
    )


@pytest.mark.parametrize(("init", "count"), [(100, 1), (0, 0)])
def test_a_driver_without_a_gpu(tmp_path: Path, init: int, count: int) -> None:
    found = missing_for_cuda(library(tmp_path, init, count))
    assert found is not None
    assert "finds no GPU" in found.reason


def test_a_gpu_without_packages_names_what_to_install(tmp_path: Path) -> None:
    found = missing_for_cuda(library(tmp_path), lambda name: name != "triton")
    assert found is not None
    assert found.reason == "these Python packages are missing: triton"
    assert "freetoken-cli[cuda12]" in found.remedy


def test_everything_is_there(tmp_path: Path) -> None:
    assert missing_for_cuda(library(tmp_path), lambda name: True) is None


def test_asking_for_cuda_without_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "missing_for_cuda", lambda: Missing("the GPU is at lunch", "Wait."))
    with pytest.raises(UnsupportedError, match="--device cuda cannot be had: the GPU is at lunch"):
        config.check_device("cuda")
    for device in ("auto", "cpu", "sim"):
        config.check_device(device)
