"""Whether a checkpoint says how text becomes its tokens: asked before its weights are read."""

from __future__ import annotations

import json

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.names import OTHER_TOKENIZERS, TOKENIZER_NAME
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.tiktoken import ranks_metadata
from engine.files.untrusted import read_small_file

_FETCH_AGAIN = "Fetch that file again."
_REMEDY = (
    "Take a checkpoint that includes tokenizer.json, or add one: transformers writes it, with "
    "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)."
)


def lacking_tokenizer(checkpoint: Checkpoint) -> str:
    """A sentence when nothing in a checkpoint says how text becomes its tokens, so that it cannot be run; else "".

    Of a tokenizer.json it is asked whether it is one at all; what it holds is read when the model is run.
    """
    if checkpoint.metadata is not None or ranks_metadata(checkpoint.companions, checkpoint.config) is not None:
        return ""
    if TOKENIZER_NAME in checkpoint.companions:
        damage = _damage(checkpoint)
        return f"{damage} {_FETCH_AGAIN}" if damage else ""
    others = [name for name in OTHER_TOKENIZERS if name in checkpoint.companions]
    instead = f", only {' and '.join(others)}, which this release does not read" if others else ""
    return f"{checkpoint.name} has no {TOKENIZER_NAME}{instead}: text cannot be turned into its tokens."


def require_tokenizer(checkpoint: Checkpoint) -> None:
    """Raises NotFoundError, with that sentence, for a checkpoint without one, CorruptFileError for a damaged one."""
    sentence = lacking_tokenizer(checkpoint)
    if sentence.endswith(_FETCH_AGAIN):
        raise CorruptFileError(sentence.removesuffix(f" {_FETCH_AGAIN}"), _FETCH_AGAIN)
    if sentence:
        raise NotFoundError(sentence, _REMEDY)


def _damage(checkpoint: Checkpoint) -> str:
    """What keeps the tokenizer.json of a checkpoint from being one, "" when it is an object with a model."""
    path = checkpoint.companions[TOKENIZER_NAME]
    try:
        value = json.loads(read_small_file(path))
    except (CorruptFileError, NotFoundError) as error:
        return error.message
    except (ValueError, RecursionError) as error:
        return f"{path} is not valid JSON: {error}."
    return (
        ""
        if isinstance(value, dict) and isinstance(value.get("model"), dict)
        else f"{path} describes no tokenizer: it has no model."
    )
