"""Sparse upcycling: a dense llama model as a Mixture-of-Experts model that computes the same function.

Every expert is the dense model's MLP with its intermediate values in an order of its own: blocks of 32 rows of gate and
up, and the same blocks of down's columns, move together, so no weight changes by a bit in any codec of such blocks. The
router is random; its chosen weights add up to one, and all experts agree, so the output is the dense model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import UnsupportedError, UsageError
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.tensors import MemoryTensor, Order, ReorderedRows, SourceTensor, reordered_blocks

BLOCK = 32
_MLP = re.compile(r"(model\.layers\.(\d+)\.)mlp\.(gate|up|down)_proj\.weight")
_AS_IT_IS = "Convert it as it is."
_MIXTRAL_NAME = {"gate": "w1", "up": "w3", "down": "w2"}
# what llama's config may leave out and mixtral's would fill in otherwise
_LLAMA_DEFAULTS = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6}


@dataclass(frozen=True)
class Upcycle:
    """How many experts a layer gets, how many of them a token uses, and the seed of orders and router."""

    experts: int = 8
    top_k: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts <= 4096:
            raise UsageError(
                f"A token cannot use {self.top_k} of {self.experts} experts.",
                "Use at least one expert and at most all, of 4096 or fewer.",
            )


def upcycled(checkpoint: Checkpoint, settings: Upcycle) -> Checkpoint:
    """`checkpoint` in the form of mixtral. Raises UnsupportedError for anything but a dense llama model."""
    if checkpoint.config.get("model_type") != "llama":
        raise UnsupportedError(
            f"{checkpoint.name} is not a dense llama model; only such a model can be made sparse.", _AS_IT_IS
        )
    return replace(
        checkpoint,
        config=_mixtral_config(checkpoint.config, settings),
        tensors=dict(_mixtral_tensors(checkpoint.tensors, settings)),
    )


def _mixtral_config(config: Mapping[str, Any], settings: Upcycle) -> dict[str, Any]:
    return {
        **_LLAMA_DEFAULTS,
        **config,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": settings.experts,
        "num_experts_per_tok": settings.top_k,
        "sliding_window": None,
    }


def _mixtral_tensors(tensors: Mapping[str, SourceTensor], settings: Upcycle) -> Iterator[tuple[str, SourceTensor]]:
    for name, tensor in tensors.items():
        match = _MLP.fullmatch(name)
        if not match:
            yield name, tensor
            continue
        prefix, layer, kind = match[1] + "block_sparse_moe.", int(match[2]), match[3]
        width = tensor.shape[1] if kind == "down" else tensor.shape[0]
        if width % BLOCK:
            raise UnsupportedError(
                f"The tensor {name} has a width of {width}, which is not whole blocks of {BLOCK}.", _AS_IT_IS
            )
        for expert in range(settings.experts):
            order = expert_order(settings.seed, layer, expert, width // BLOCK)
            yield f"{prefix}experts.{expert}.{_MIXTRAL_NAME[kind]}.weight", _reordered(name, tensor, kind, order)
        if kind == "gate":
            yield f"{prefix}gate.weight", _router(settings, layer, tensor.shape[1])


def _reordered(name: str, tensor: SourceTensor, kind: str, order: Order) -> SourceTensor:
    if kind == "down":
        return reordered_blocks(name, tensor, order, BLOCK)
    rows = order[:, None] * BLOCK + np.arange(BLOCK)
    return ReorderedRows(tensor, rows.reshape(-1))


def expert_order(seed: int, layer: int, expert: int, blocks: int) -> Order:
    """The order in which an expert keeps the blocks of the dense model's intermediate values."""
    return np.argsort(_random_words(seed, layer, expert, blocks), kind="stable").astype(np.int64)


def _router(settings: Upcycle, layer: int, hidden_size: int) -> MemoryTensor:
    """Uniform weights whose logits for a normalised hidden state have a standard deviation of about one."""
    words = _random_words(settings.seed, layer, settings.experts, settings.experts * hidden_size)
    unit = (words >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1  # 24 bits, exact in f32
    weights = (unit * (3 / hidden_size) ** 0.5).astype(np.float32)
    raw = weights.view(np.uint8).reshape(settings.experts, hidden_size * 4)
    return MemoryTensor("f32", (settings.experts, hidden_size), raw)


def _random_words(seed: int, layer: int, stream: int, count: int) -> npt.NDArray[np.uint64]:
    """Raw output of a bit generator, which numpy keeps the same in every release."""
    return np.atleast_1d(np.random.PCG64([seed, layer, stream]).random_raw(count))
