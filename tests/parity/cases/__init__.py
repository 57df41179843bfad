"""Tiny random models of every family, as settings for transformers. At least one case a family, one for every quirk."""

from .case import Case
from .chosen import CHOSEN_CASES
from .deepseek_v4 import DEEPSEEK_V4_CASES
from .dense import DENSE_CASES
from .dense_fused import DENSE_FUSED_CASES
from .gemma import GEMMA_CASES
from .latent import LATENT_CASES
from .linear import LINEAR_CASES
from .llama4 import LLAMA4_CASES
from .longcat import LONGCAT_CASES
from .plain import PLAIN_CASES
from .quantised import QUANTISED_CASES
from .recurrent import RECURRENT_CASES
from .residual import RESIDUAL_CASES
from .sparse import SPARSE_CASES
from .sparse_attention import SPARSE_ATTENTION_CASES
from .windowed import WINDOWED_CASES
from .wrapped import WRAPPED_CASES

CASES: tuple[Case, ...] = (
    *DENSE_CASES,
    *DENSE_FUSED_CASES,
    *SPARSE_CASES,
    *LATENT_CASES,
    *RECURRENT_CASES,
    *LINEAR_CASES,
    *LONGCAT_CASES,
    *PLAIN_CASES,
    *LLAMA4_CASES,
    *GEMMA_CASES,
    *RESIDUAL_CASES,
    *WINDOWED_CASES,
    *WRAPPED_CASES,
    *SPARSE_ATTENTION_CASES,
    *DEEPSEEK_V4_CASES,
    *CHOSEN_CASES,
)

__all__ = ["CASES", "QUANTISED_CASES", "Case"]
