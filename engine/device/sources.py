"""Where the CUDA sources lie, and how NVRTC is to compile them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import xxhash

import engine
from engine.base.errors import UnsupportedError

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")  # that the tests compile for; others are compiled when met
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


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

    def headers(self) -> list[str]:
        """Names, below `root`, of our headers that the kernels include."""
        found: set[str] = set()
        left = [f"cuda/{file}" for file in self.files()]
        while left:
            included = set(_INCLUDE.findall((self.root / left.pop()).read_text())) - found
            found |= included
            left += included
        return sorted(found)

    def fingerprint(self) -> str:
        """A hash of all that kernels are made of: what was measured or compiled with another is out of date."""
        digest = xxhash.xxh3_128()
        stand_ins = (path.relative_to(self.root).as_posix() for path in (self.root / "cuda" / "nvrtc").iterdir())
        for name in [*(f"cuda/{file}" for file in self.files()), *self.headers(), *sorted(stand_ins)]:
            digest.update(name.encode())
            digest.update((self.root / name).read_bytes())
        return digest.hexdigest()


def find_sources() -> CudaSources:
    """The sources of a checkout as they lie, else those that were installed. Raises UnsupportedError without any."""
    package = Path(engine.__file__).parent
    for root in (package.parent / "native", package / "cuda_sources"):
        if (root / "cuda" / "device.h").is_file():
            return CudaSources(root)
    raise UnsupportedError("This installation lacks the sources of the GPU's kernels.", "Install freetoken again.")
