"""Machine code for the kernels: compiled by NVRTC when it is first wanted, and kept on disk from then on."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock

import platformdirs
import xxhash
from cupy_backends.cuda.libs import nvrtc

from engine.base.errors import ON_THE_CPU, FreetokenError
from engine.device.kernels import KernelSignature
from engine.device.sources import find_sources


def default_folder() -> Path:
    """Where this user's compiled kernels are kept; anybody may delete it."""
    return Path(platformdirs.user_cache_dir("freetoken")) / "kernels"


class Compiler:
    """Compiles for one compute capability, such as "90". Raises FreetokenError with what the compiler says."""

    def __init__(self, compute_capability: str, folder: Path | None = None) -> None:
        self._architecture = f"sm_{compute_capability}"
        self._folder = folder or default_folder()
        self._sources = find_sources()
        major, minor = nvrtc.getVersion()
        self._made_of = f"{self._sources.fingerprint()} {self._architecture} {major}.{minor}"
        self._made: dict[Path, bytes] = {}
        self._lock = Lock()

    def cubin(self, kernel: KernelSignature) -> bytes:
        """The machine code that holds a kernel: of its file, or of its file for its codec."""
        with self._lock:
            path = self._path(kernel)
            if path not in self._made:
                self._made[path] = _read(path) or self._compile(kernel, path)
            return self._made[path]

    def _path(self, kernel: KernelSignature) -> Path:
        name = f"{Path(kernel.file).stem}-{kernel.codec or 'all'}"
        digest = xxhash.xxh3_64_hexdigest(f"{name} {self._made_of}".encode())
        return self._folder / f"{name}-{digest}.cubin"

    def _compile(self, kernel: KernelSignature, path: Path) -> bytes:
        options = self._sources.options(self._architecture, kernel.codec)
        program = nvrtc.createProgram(self._sources.text(kernel.file), kernel.file, (), ())
        try:
            nvrtc.compileProgram(program, options)
            code = bytes(nvrtc.getCUBIN(program))
        except nvrtc.NVRTCError as error:
            raise FreetokenError(
                f"{kernel.file} does not compile for {self._architecture}: {nvrtc.getProgramLog(program)}",
                ON_THE_CPU,
            ) from error
        finally:
            nvrtc.destroyProgram(program)
        _write(path, code)
        return code


def _read(path: Path) -> bytes:
    """The file, or nothing where there is none of use: a cut one does not begin or end as machine code does."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    digest, code = content[:16], content[16:]
    return code if xxhash.xxh3_128_digest(code) == digest else b""


def _write(path: Path, code: bytes) -> None:
    """Keep it for the next start; a folder that cannot be written costs that start a compilation and no more."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(xxhash.xxh3_128_digest(code) + code)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
