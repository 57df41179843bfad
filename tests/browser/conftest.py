"""Fixtures: one browser for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.browser import Browser, missing, started


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if missing():
        pytest.skip(f"{missing()} is not installed: make test-browser")
    with started(tmp_path_factory.mktemp("profile")) as running:
        yield running
