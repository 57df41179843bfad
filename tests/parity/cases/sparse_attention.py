"""Models whose attention sees what an indexer has chosen: fewer positions than the prompts have."""

from __future__ import annotations

from .case import BIASES, Case
from .latent import DEEPSEEK_YARN, GROUPS, LATENT, ODD_LATENT

# So many heads that hardly any pair of a query and a key is rectified to nothing by all: equal scores are ties, which
# transformers breaks as it likes.
INDEX = {"index_topk": 16, "index_n_heads": 12, "index_head_dim": 32}
ODD_INDEX = {"index_topk": 11, "index_n_heads": 13, "index_head_dim": 22}

SPARSE_ATTENTION_CASES = (
    Case("deepseek_v32", "deepseek_v32", {**LATENT, **INDEX, **DEEPSEEK_YARN, "n_group": 1, "topk_group": 1}),
    Case(
        "deepseek_v32-odd-groups",
        "deepseek_v32",
        {**LATENT, **ODD_LATENT, **ODD_INDEX, **BIASES, "n_group": 3, "topk_group": 2},
        fused=True,
    ),
    Case(
        "glm_moe_dsa",
        "glm_moe_dsa",
        {**LATENT, **INDEX, "indexer_types": ["full", "shared", "full"]},
    ),
    Case(
        "glm_moe_dsa-odd-shared",
        "glm_moe_dsa",
        {**LATENT, **ODD_LATENT, **ODD_INDEX, **GROUPS, "n_group": 3, "index_topk_freq": 2, "norm_topk_prob": False},
        fused=True,
    ),
)
