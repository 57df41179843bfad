"""The architectures of GGUF files that are read, as data.

`NAME with experts` and `NAME with sigmoid scores` are what files of the architecture NAME are when they have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.files.sources.gguf.architectures.attending import ATTENDING
from engine.files.sources.gguf.architectures.biased import BIASED
from engine.files.sources.gguf.architectures.dense_fused import DENSE_FUSED
from engine.files.sources.gguf.architectures.gemma import GEMMA
from engine.files.sources.gguf.architectures.head_gates import HEAD_GATED
from engine.files.sources.gguf.architectures.latent import LATENT
from engine.files.sources.gguf.architectures.linear import LINEAR
from engine.files.sources.gguf.architectures.local import LOCAL
from engine.files.sources.gguf.architectures.plain import PLAIN
from engine.files.sources.gguf.architectures.record import Architecture
from engine.files.sources.gguf.architectures.recurrent import RECURRENT
from engine.files.sources.gguf.architectures.streams import STREAMS

__all__ = ["ARCHITECTURES"]

ARCHITECTURES: Mapping[str, Architecture] = {
    **ATTENDING,
    **BIASED,
    **DENSE_FUSED,
    **GEMMA,
    **HEAD_GATED,
    **LATENT,
    **LINEAR,
    **LOCAL,
    **PLAIN,
    **RECURRENT,
    **STREAMS,
}
