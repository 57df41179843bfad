"""What the second buffer is worth on the paper's shape, beside the paper's figures."""

from __future__ import annotations

import pytest

from tests.unit.prefill_ablation import LOST, POOL, ablate


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_the_second_buffer_is_worth_what_the_paper_says(tokens: int) -> None:
    found = ablate(tokens)
    assert found.lost == pytest.approx(LOST[tokens], abs=0.02)
    chunks = -(-tokens // 8192)
    assert chunks * POOL < found.seconds < chunks * POOL * 1.01, "more than the pool takes over the link"
    assert found.warm < found.seconds * 0.75, "what lies in slots is transferred all the same"
