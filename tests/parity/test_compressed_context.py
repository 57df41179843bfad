"""Contexts with more compressed entries than one block of attention holds."""

from __future__ import annotations

import numpy as np

from tests.same_bits import assert_same_bits

from .check import TOLERANCE, in_chunks
from .conftest import Models
from .prepare import native

TOKENS = 600  # of entries of two tokens: more than 256, of which nine are chosen


def test_many_entries_are_those_of_the_reference_however_the_work_is_cut(models: Models) -> None:
    model = models("deepseek_v4-odd")
    prompt = np.random.default_rng(5).integers(3, model.spec.vocab_size, TOKENS).tolist()
    whole = in_chunks(native(model.ftw), prompt, [512, TOKENS - 512])
    expected = in_chunks(model.reference(), prompt, [TOKENS])
    assert np.abs(whole - expected).max() <= TOLERANCE * np.abs(expected).max()
    for settings, sizes in (({"threads": 1}, [37]), ({"isa": "scalar", "page_tokens": 32}, [300, 1, 299])):
        assert_same_bits(in_chunks(native(model.ftw, **settings), prompt, sizes), whole)


def test_every_entry_is_seen_where_none_are_chosen(models: Models) -> None:
    model = models("deepseek_v4")
    prompt = (
        np.random.default_rng(6).integers(3, model.spec.vocab_size, 8 * 280).tolist()
    )  # 280 entries of eight tokens
    whole = in_chunks(native(model.ftw), prompt, [512])
    expected = in_chunks(model.reference(), prompt, [512])
    assert np.abs(whole - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert_same_bits(in_chunks(native(model.ftw, threads=1, page_tokens=32), prompt, [500]), whole)
