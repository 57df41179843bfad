"""What all tests share: the same examples at every run, and which tests one process keeps together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A change should not fail for an example that its author never saw, nor on a machine that is busy with something else.
# `--hypothesis-profile=explore` looks for new examples.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("steady")

BY_FILE = tuple(Path(__file__).with_name(name) for name in ("server", "turns"))
"""Folders whose tests share what is started for a file."""

TIMED = tuple(Path(__file__).with_name(name) for name in ("cli", "server"))
"""Folders where the Makefile looks for tests that measure time; elsewhere one would never run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the work, one has all tests of a file that starts a server."""
    for item in items:
        if item.get_closest_marker("clock") is not None and item.path.parent not in TIMED:
            raise pytest.UsageError(f"{item.nodeid} measures time: such tests belong in tests/cli or tests/server.")
        if item.path.parent in BY_FILE:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
