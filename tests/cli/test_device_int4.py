"""A GPTQ checkpoint with columns in orders of their own, from `convert` to answers on a simulated GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.harness import Home
from tests.parity.cases import QUANTISED_CASES
from tests.parity.int4_vendors import INT4
from tests.parity.tiny import save
from tests.parity.vendors import quantise_folder
from tests.server.running_front import write_text_files
from tests.unit.fake_executor import VOCAB

QUICK = ("--greedy", "--max-tokens", "8")
MOVED = [
    pytest.param(name, marks=() if layout.symmetric else pytest.mark.long)
    for name, (layout, _) in INT4.items()
    if layout.moved and layout.layout.startswith("gptq")
]


@pytest.fixture(params=MOVED)
def checkpoint_in_order(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny qwen3_moe, quantised with `desc_act`, as its publisher would have it."""
    case = QUANTISED_CASES["qwen3_moe"]
    twin, source = tmp_path / "twin", tmp_path / "Tiny-GPTQ"
    save(replace(case, settings={**case.settings, "vocab_size": VOCAB}), twin)
    quantise_folder(INT4[request.param][0].vendor, twin, source)
    write_text_files(source)
    config = json.loads((source / "config.json").read_text())
    assert config["quantization_config"]["desc_act"]
    return source


@pytest.fixture
def alive(home: Home, checkpoint_in_order: Path) -> Iterator[Home]:
    """A home whose store has it, and whose background server is ended afterwards."""
    done = home.run_here("convert", str(checkpoint_in_order), str(home.paths.store / "ordered"))
    assert done.returncode == 0, done.stderr
    yield home
    home.run_here("stop", "--all")


def test_it_says_on_a_device_what_it_says_on_the_cpu(alive: Home) -> None:
    on_cpu = alive.run_here("run", "ordered", "hello", *QUICK, "--device", "cpu")
    assert on_cpu.returncode == 0, on_cpu.stderr
    assert on_cpu.stdout.strip()
    done = alive.run_here("run", "ordered", "hello", *QUICK, "--device", "sim", "--experts", "100%", "--verbose")
    assert done.returncode == 0, done.stderr
    assert done.stdout == on_cpu.stdout
    assert "--experts 100% has no effect: there are no experts that the device could hold." in done.stderr
    assert re.search(r"^misses +0 filled, [1-9]\d* computed on the CPU \(100% of experts\)$", done.stderr, re.M)
    resized = alive.run_here("resize", "ordered", "--experts", "4", "--kv", "256")
    assert resized.returncode == 0, resized.stderr
    again = alive.run_here("run", "ordered", "hello", *QUICK, "--device", "sim")
    assert (again.returncode, again.stdout) == (0, on_cpu.stdout)
