"""Every case is built once a session and shared by the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from .cases import CASES
from .prepare import Prepared, prepare, prepare_quantised
from .recording import OPTION, Recorder

Models = Callable[[str], Prepared]
QuantisedModels = Callable[[str, str], Prepared]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="write there what was compared, for `make support`")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption(OPTION, None)) is not None:
        config.pluginmanager.register(Recorder(Path(file)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the work, one has all tests of a model, which is built once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            model = params.get("name") or "-".join(str(params[key]) for key in ("family", "codec") if key in params)
            item.add_marker(pytest.mark.xdist_group(model or item.path.stem))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and much slower where others use the processors too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.fixture(scope="session")
def quantised_models(tmp_path_factory: pytest.TempPathFactory) -> QuantisedModels:
    """A model by family and the codec of its experts."""
    ready: dict[tuple[str, str], Prepared] = {}

    def get(family: str, codec: str) -> Prepared:
        if (family, codec) not in ready:
            ready[family, codec] = prepare_quantised(family, codec, tmp_path_factory.mktemp(f"{family}-{codec}"))
        return ready[family, codec]

    return get
