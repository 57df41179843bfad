"""A real checkpoint that takes no time: random weights, a byte tokenizer, a chat template."""

from __future__ import annotations

from pathlib import Path

from tests.server.running_front import write_text_files
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder
from tests.unit.fake_executor import VOCAB

CONFIG = {**MIXTRAL, "vocab_size": VOCAB}


def write_tiny_checkpoint(folder: Path) -> Path:
    """A mixtral folder whose answers are nonsense, always the same one for the same prompt."""
    write_folder(folder, mixtral_tensors(CONFIG), CONFIG)
    write_text_files(folder)
    return folder
