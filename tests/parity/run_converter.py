"""Runs llama.cpp's own converter over tiny checkpoints that have no tokenizer: a program of its own, for its packages.

    python run_converter.py FOLDER/convert_hf_to_gguf.py CHECKPOINT OUT.gguf [CHECKPOINT OUT.gguf ..]

Prints a line of JSON: why a checkpoint could not be converted, by its folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(converter: Path, pairs: list[str]) -> None:
    sys.path[:0] = [str(converter.parent), str(converter.parent / "gguf-py")]
    import torch

    failed = {}
    with torch.inference_mode():
        for checkpoint, out in zip(pairs[::2], pairs[1::2], strict=True):
            try:
                _convert(Path(checkpoint), Path(out))
            except Exception as error:
                failed[checkpoint] = f"{type(error).__name__}: {error}"
    print(json.dumps(failed))


def _convert(checkpoint: Path, out: Path) -> None:
    import gguf
    from conversion import ModelType, get_model_architecture, get_model_class
    from conversion.base import ModelBase, TextModel

    architecture = get_model_architecture(ModelBase.load_hparams(checkpoint, False), ModelType.TEXT)
    found: Any = get_model_class(architecture, mmproj=False)
    without: dict[str, Any] = {"set_vocab": TextModel._set_vocab_none, "_get_suppress_tokens": lambda _self: None}
    tokenless = type("Tokenless", (found,), {"model_arch": found.model_arch, **without})
    if found.supports_mtp_export:
        tokenless.no_mtp = True
    model = tokenless(checkpoint, gguf.LlamaFileType.ALL_F32, out)
    if hasattr(model, "impl"):
        model.impl.set_vocab = model.impl._set_vocab_none
    model.write()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
