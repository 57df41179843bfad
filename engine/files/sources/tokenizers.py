"""Whether a checkpoint says how text becomes its tokens: asked before its weights are read."""

from __future__ import annotations

from engine.base.errors import NotFoundError
from engine.files.names import OTHER_TOKENIZERS, TOKENIZER_NAME
from engine.files.sources.checkpoint import Checkpoint

_REMEDY = (
    "Take a checkpoint that includes tokenizer.json, or add one: transformers writes it, with "
    "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)."
)


def lacking_tokenizer(checkpoint: Checkpoint) -> str:
    """A sentence when nothing in a checkpoint says how text becomes its tokens, so that it cannot be run; else ""."""
    if checkpoint.metadata is not None or TOKENIZER_NAME in checkpoint.companions:
        return ""
    others = [name for name in OTHER_TOKENIZERS if name in checkpoint.companions]
    instead = f", only {' and '.join(others)}, which this release does not read" if others else ""
    return f"{checkpoint.name} has no {TOKENIZER_NAME}{instead}: text cannot be turned into its tokens."


def require_tokenizer(checkpoint: Checkpoint) -> None:
    """Raises NotFoundError, with that sentence, for a checkpoint without one."""
    sentence = lacking_tokenizer(checkpoint)
    if sentence:
        raise NotFoundError(sentence, _REMEDY)
