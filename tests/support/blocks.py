"""Parts of Markdown files that a program writes, between two comments."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT, README = ROOT / "docs" / "support.md", ROOT / "README.md"


def read_block(file: Path, name: str) -> str:
    """What lies between the comments of a block. ValueError where there is no such block."""
    found = re.search(_pattern(name), file.read_text(), re.DOTALL)
    if found is None:
        raise ValueError(f"{file} has no block {name}")
    return found[2]


def write_block(file: Path, name: str, text: str) -> None:
    """Put `text` between the comments of a block."""
    read_block(file, name)
    file.write_text(re.sub(_pattern(name), lambda found: found[1] + text + found[3], file.read_text(), flags=re.DOTALL))


def table_rows(block: str) -> list[list[str]]:
    """The cells of a table's rows, without its two lines of titles."""
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def table(titles: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _pattern(name: str) -> str:
    return rf"(<!-- {name}: written by make support -->\n)(.*?)( *<!-- end of {name} -->)"
