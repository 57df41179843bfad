"""Compiled kernels are kept on disk, and what is kept is believed only whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.device.kernels import signature

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="cupy is not installed")
compiling = pytest.importorskip("engine.device.compiling")
Compiler = compiling.Compiler


@pytest.fixture(autouse=True)
def compiler_is_there() -> None:
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC is not installed: {error}")


def test_a_kernel_is_compiled_once_and_read_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = Compiler("90", tmp_path).cubin(signature("merge"))
    assert code[:4] == b"\x7fELF"
    monkeypatch.setattr(nvrtc, "compileProgram", lambda *_: pytest.fail("compiled again"))
    assert Compiler("90", tmp_path).cubin(signature("merge")) == code


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 4096])
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, damage: bytes) -> None:
    code = Compiler("80", tmp_path).cubin(signature("merge"))
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(damage)
    assert Compiler("80", tmp_path).cubin(signature("merge")) == code
    assert kept.read_bytes()[16:] == code


def test_targets_and_codecs_are_kept_apart(tmp_path: Path) -> None:
    for target in ("80", "90"):
        for codec in ("q4_0", "f32"):
            Compiler(target, tmp_path).cubin(signature(f"embed_{codec}"))
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert Compiler("90", tmp_path / "file").cubin(signature("merge"))[:4] == b"\x7fELF"
