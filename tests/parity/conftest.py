"""Every case is built once a session and shared by the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cases import CASES
from .prepare import Prepared, prepare

Models = Callable[[str], Prepared]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A case by name, ready to run."""
    ready: dict[str, Prepared] = {}
    by_name = {case.name: case for case in CASES}

    def get(name: str) -> Prepared:
        if name not in ready:
            ready[name] = prepare(by_name[name], tmp_path_factory.mktemp(name))
        return ready[name]

    return get
