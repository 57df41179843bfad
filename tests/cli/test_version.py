"""One version, told in two places that must agree."""

import tomllib
from pathlib import Path

import engine
import freetoken_cli


def test_the_package_has_the_version_of_its_project_file() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert engine.__version__ == freetoken_cli.__version__ == project["version"]
