"""`pytest tests/parity --support-report FILE`: which family was compared in which codec on which device, and passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.spec.families import find_family

from .cases import CASES

OPTION = "--support-report"
DEVICES = {"test_native": "cpu", "test_sim": "sim"}  # by the module of a test
FAMILY_OF = {case.name: find_family({"model_type": case.family}).name for case in CASES}


def subject(item: pytest.Item) -> str:
    """`family codec device` of a test that compares a model; "" for another one."""
    device = DEVICES.get(item.path.stem, "")
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if not device or "axis" in params:
        return ""
    if params.get("name") in FAMILY_OF:
        return f"{FAMILY_OF[params['name']]} f32 {device}"
    return f"{params['family']} {params['codec']} {device}" if {"family", "codec"} <= params.keys() else ""


class Recorder:
    """A plugin of pytest that writes what all passed into a JSON file: a list of [family, codec, device]."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: dict[str, bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.user_properties.append(("subject", subject(item)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = str(dict(report.user_properties).get("subject", ""))
        if name and (report.when == "call" or report.failed):
            self._passed[name] = self._passed.get(name, True) and report.passed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):  # one of several processes, whose reports the first one gets
            self._file.parent.mkdir(parents=True, exist_ok=True)
            passed = sorted(name.split() for name, good in self._passed.items() if good)
            self._file.write_text(json.dumps(passed, indent=0) + "\n")
