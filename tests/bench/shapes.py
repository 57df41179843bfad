"""What random models are made of: a size, and tensors described by name, shape and role.

A family is a function from a `Shape` to the list of its tensors in file order, and one to its `config.json`;
`families` has them all. Nothing here draws a number; `random_moe` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The size of a model, in the terms of `config.json`."""

    layers: int = 16
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    experts: int = 64
    top_k: int = 8
    intermediate: int = 512  # of one expert
    vocab: int = 49152
    context: int = 4096

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key heads evenly")


@dataclass(frozen=True)
class Weight:
    """One tensor outside the experts. `role` picks its codec; `gguf` is its name there, without the `blk.N.`."""

    name: str
    shape: tuple[int, ...]
    role: str  # embedding, attention, router, norm, bias
    std: float
    gguf: str = ""
    rotary_heads: int = 0  # rows of so many heads whose halves GGUF's `llama` architecture interleaves


@dataclass(frozen=True)
class Experts:
    """One kind of matrix (gate, up, down) of all experts of a layer.

    `name` holds `{e}` where every expert has a tensor of its own. Otherwise it names one tensor of all experts, and
    the kinds of a layer that share a name are joined: end to end by rows, or interleaved row by row.
    """

    name: str
    kind: str
    count: int
    rows: int
    cols: int
    std: float
    gguf: str = ""
    transposed: bool = False  # stored [cols, rows]
    interleaved: bool = False


Tensor = Weight | Experts


@dataclass(frozen=True)
class Family:
    """How one architecture writes its checkpoint."""

    config: Callable[[Shape], dict[str, Any]]
    layer: Callable[[Shape, int], Iterator[Tensor]]
    gguf: str = ""  # the architecture's name in GGUF; "" where GGUF files are not generated
    tied: bool = True


def tensors(family: Family, shape: Shape) -> Iterator[tuple[int, Tensor]]:
    """Every tensor with its layer (-1 outside the layers), in file order."""
    yield -1, Weight("model.embed_tokens.weight", (shape.vocab, shape.hidden), "embedding", 0.1, "token_embd.weight")
    for layer in range(shape.layers):
        for tensor in family.layer(shape, layer):
            yield layer, tensor
    yield -1, Weight("model.norm.weight", (shape.hidden,), "norm", 0.05, "output_norm.weight")
    if not family.tied:
        std = shape.hidden**-0.5
        yield -1, Weight("lm_head.weight", (shape.vocab, shape.hidden), "embedding", std, "output.weight")
