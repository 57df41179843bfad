"""Writes every hostile file and folder below the folder that is named, to try a program on them by hand."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.hostile.ftw_folders import FTW_FOLDERS
from tests.hostile.gguf_files import GGUF_FILES
from tests.hostile.safetensors_files import SAFETENSORS_FILES

GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "tiny.ftw"


def write_all(root: Path) -> None:
    """One GGUF file, one model folder or one FTW folder for each entry of the tables."""
    for name, (content, _) in GGUF_FILES.items():
        path = root / "gguf" / f"{name}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, (content, _) in SAFETENSORS_FILES.items():
        folder = root / "safetensors" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "model.safetensors").write_bytes(content)
    for name, (change, _, _) in FTW_FOLDERS.items():
        change(Path(shutil.copytree(GOLDEN, root / "ftw" / name)))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
