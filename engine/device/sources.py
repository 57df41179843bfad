"""Where the CUDA sources lie, and how NVRTC is to compile them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash

import engine
from engine.base.errors import UnsupportedError

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")  # that the tests compile for; others are compiled when met

_ACTIVATIONS = "kernels/activations.h"  # of the headers beside those of cuda and core, the only one
_SUFFIXES = (".cu", ".h", "")  # NVRTC's stand-ins for the standard library have none


@dataclass(frozen=True)
class CudaSources:
    """`root` holds `cuda` with the kernels, and the headers that they include."""

    root: Path

    def files(self) -> list[str]:
        """Names of the files with kernels."""
        return sorted(path.name for path in (self.root / "cuda").glob("*.cu"))

    def text(self, file: str) -> str:
        return (self.root / "cuda" / file).read_text()

    def options(self, architecture: str, codec: str | None = None) -> tuple[str, ...]:
        """For an architecture such as "sm_90"; of a file with a kernel for each codec only that of `codec`, if given.

        Products and sums are not contracted (docs/numerics.md).
        """
        options = (
            f"-arch={architecture}",
            "-std=c++20",
            "-default-device",
            "-fmad=false",
            f"-I{self.root}",
            f"-I{self.root / 'cuda' / 'nvrtc'}",
            "--pre-include=cuda/nvrtc/prelude.h",
        )
        return options if codec is None else (*options, f"-DFREETOKEN_CODEC={codec}")

    def fingerprint(self) -> str:
        """A hash of all that a kernel can be made of: what was measured or compiled with another is out of date."""
        digest = xxhash.xxh3_128()
        for folder in ("cuda", "core"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file() and path.suffix in _SUFFIXES:
                    digest.update(path.relative_to(self.root).as_posix().encode())
                    digest.update(path.read_bytes())
        digest.update((self.root / _ACTIVATIONS).read_bytes())
        return digest.hexdigest()


def find_sources() -> CudaSources:
    """The sources of a checkout as they lie, else those that were installed. Raises UnsupportedError without any."""
    package = Path(engine.__file__).parent
    for root in (package.parent / "native", package / "cuda_sources"):
        if (root / "cuda" / "device.h").is_file():
            return CudaSources(root)
    raise UnsupportedError("This installation lacks the sources of the GPU's kernels.", "Install freetoken again.")
