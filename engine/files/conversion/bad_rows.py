"""What the packer says of a row that it cannot pack, told of the tensor and the files that the row came from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.base.errors import CorruptFileError
from engine.files.source_file import SourceFile

_BAD_ROW = re.compile(r"row (\d+)(.*)", re.DOTALL)  # as the packer begins a sentence about a value


def bad_row(error: ValueError, name: str) -> tuple[int, str]:
    """The row, counted as the packer counts, and what is the matter with it. `name` was handed to the packer.

    AssertionError for a sentence about no row: what was handed over had a wrong size.
    """
    bad = _BAD_ROW.fullmatch(str(error))
    if bad is None:
        raise AssertionError(f"{name} was not handed to the packer as planned") from error
    return int(bad[1]), bad[2]


def unusable(files: Iterable[SourceFile], tensor: str, row: int, what: str) -> CorruptFileError:
    """The error for a row of a tensor in `files`."""
    places = " and ".join(dict.fromkeys(str(file.path) for file in files))
    return CorruptFileError(
        f"{places}: the tensor {tensor} cannot be used: row {row}{what}.",
        "Fetch the file again; if it is so in the original, use another checkpoint.",
    )
