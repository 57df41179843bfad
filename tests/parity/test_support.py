"""The tables of what is supported name what there is, no more and no less."""

from __future__ import annotations

import pytest

from engine.files.codecs import CODECS
from engine.spec.families import FAMILIES
from tests.support.blocks import README, SUPPORT, read_block, table_rows
from tests.support.matrix import LIST, MARKS, MATRIX
from tests.support.numbers import NUMBERS

from .recording import FAMILY_OF

REMEDY = "run make support"


@pytest.fixture(scope="module")
def matrix() -> dict[str, dict[str, str]]:
    """Marks by family and title of a column."""
    block = read_block(SUPPORT, MATRIX)
    titles = [cell.strip() for cell in block.splitlines()[0].strip("|").split("|")]
    return {row[0]: dict(zip(titles[1:], row[1:], strict=True)) for row in table_rows(block)}


def test_the_matrix_has_every_family_and_every_codec(matrix: dict[str, dict[str, str]]) -> None:
    assert set(matrix) == set(FAMILIES) == set(FAMILY_OF.values()), REMEDY
    for row in matrix.values():
        assert [*row] == [*CODECS, "cuda"], REMEDY
        assert set(row.values()) <= set(MARKS), REMEDY


def test_what_a_family_says_of_itself_is_marked_as_tested(matrix: dict[str, dict[str, str]]) -> None:
    for name, family in FAMILIES.items():
        marked = {codec for codec in CODECS if matrix[name][codec] in ("T", "c")}
        assert marked == set(family.tested), f"{name}: {REMEDY}"


def test_every_family_has_its_line_of_numbers() -> None:
    assert {row[0] for row in table_rows(read_block(SUPPORT, NUMBERS))} == set(FAMILIES), REMEDY


def test_the_first_page_lists_every_family() -> None:
    words = read_block(README, LIST).replace("dense:", "").replace(";", ",").replace(".\n", "").replace("\n", " ")
    assert {word.strip() for word in words.split(",")} == set(FAMILIES), REMEDY
