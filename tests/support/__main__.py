"""`python -m tests.support matrix REPORT` or `python -m tests.support numbers [FAMILY]`; `make support` does both."""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Write one of the tables anew. 2: wrong usage."""
    match arguments:
        case ["matrix", report]:
            from .matrix import write_matrix

            write_matrix(Path(report))
        case ["numbers", *families]:
            from .numbers import write_numbers

            write_numbers(families)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
