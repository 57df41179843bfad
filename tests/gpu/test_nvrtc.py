"""Every CUDA source compiles for every target, without a GPU: NVRTC is a compiler and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.device.kernels import CODEC, KERNELS, signatures
from engine.device.sources import TARGETS, CudaSources, find_sources
from engine.files.codecs import CODECS

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="cupy is not installed")

SOURCES = find_sources()
FAMILIES = sorted({kernel.file for kernel in KERNELS if CODEC in kernel.name})  # a kernel for each codec: seconds each
SINGLE = sorted({kernel.file for kernel in KERNELS} - set(FAMILIES))
USUAL = ("sm_80", "sm_120")  # the oldest and the newest; a family's other targets take long
LIST = ("-arch=sm_90", "-std=c++20")


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC is not installed: {error}")


def build(text: str, name: str, options: Sequence[str], ptx: bool = False) -> tuple[bytes, str]:
    """Machine code (or PTX) and what the compiler said. Raises with what it said."""
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, tuple(options))
        code = nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program)
        return bytes(code), nvrtc.getProgramLog(program).strip()
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


def build_file(file: str, target: str, codec: str | None = None) -> tuple[bytes, str]:
    return build(SOURCES.text(file), file, SOURCES.options(target, codec))


def entries(cubin: bytes) -> set[str]:
    """Names of the kernels: each has a section .text.NAME."""
    return {name.decode() for name in re.findall(rb"\0\.text\.([A-Za-z0-9_]+)(?=\0)", cubin)}


def kernels_of(file: str, codec: str | None = None) -> set[str]:
    return {k.name for k in signatures().values() if k.file == file and codec in (None, k.codec)}


def check(file: str, targets: Sequence[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda target: build_file(file, target), targets))
    for target, (cubin, log) in zip(targets, results, strict=True):
        assert log == "", f"{target}: {log}"
        assert entries(cubin) == kernels_of(file), target


@pytest.mark.parametrize("file", SINGLE)
def test_a_file_compiles_for_every_target(file: str) -> None:
    check(file, TARGETS)


@pytest.mark.parametrize("file", FAMILIES)
def test_all_codecs_compile_for_the_oldest_and_the_newest_target(file: str) -> None:
    check(file, USUAL)


@pytest.mark.long
@pytest.mark.parametrize("file", FAMILIES)
def test_all_codecs_compile_for_the_other_targets(file: str) -> None:
    check(file, [target for target in TARGETS if target not in USUAL])


@pytest.mark.parametrize("codec", ["f32", "q8_0", "nvfp4"])
def test_one_codec_can_be_compiled_alone(codec: str) -> None:
    for file in FAMILIES:
        cubin, _ = build_file(file, "sm_90", codec)
        assert entries(cubin) == kernels_of(file, codec) != set()


def test_the_table_has_every_file_and_every_codec() -> None:
    assert SOURCES.files() == sorted({kernel.file for kernel in KERNELS})
    assert len(kernels_of("linear.cu")) == len(CODECS)


def test_products_and_sums_are_not_contracted() -> None:
    text = 'extern "C" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    ours, _ = build(text, "k.cu", SOURCES.options("sm_90"), ptx=True)
    without, _ = build(text, "k.cu", LIST, ptx=True)
    assert b"fma" not in ours
    assert b"fma" in without


def test_an_error_is_told() -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        build('extern "C" __global__ void k() { nonsense(); }', "k.cu", SOURCES.options("sm_90"))


def test_the_kernels_and_the_headers_listed_are_enough(tmp_path: Path) -> None:
    """What `fingerprint` looks at is all that the compiler reads."""
    for name in [*(f"cuda/{file}" for file in SOURCES.files()), *SOURCES.headers()]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((SOURCES.root / name).read_bytes())
    (tmp_path / "cuda" / "nvrtc").mkdir()
    for path in (SOURCES.root / "cuda" / "nvrtc").iterdir():
        (tmp_path / "cuda" / "nvrtc" / path.name).write_bytes(path.read_bytes())
    copy = CudaSources(tmp_path)
    assert copy.fingerprint() == SOURCES.fingerprint()
    for file in SINGLE:
        build(copy.text(file), file, copy.options("sm_90"))
    for file in FAMILIES:
        build(copy.text(file), file, copy.options("sm_90", "q4_0"))
    (tmp_path / "core" / "numerics.h").write_text("#pragma once\n")
    assert copy.fingerprint() != SOURCES.fingerprint()
