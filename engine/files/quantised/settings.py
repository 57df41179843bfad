"""What config.json says of how its weights are quantised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError

FIELDS = ("quantization_config", "compression_config")
# The methods whose layouts have a reader. Each may be met in any of them: the tensors decide.
METHODS = (
    "awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "modelopt_fp4", "modelopt_mixed", "mxfp4",
    "mxfp8",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """`method` is the quant_method, "" where none is named; `table` is the whole description."""

    method: str = ""
    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Settings:
        """Finds the description in a config.json, at its top or in its text_config.

        Raises CorruptFileError for one that is no object or whose quant_method is no text.
        """
        inner = config.get("text_config")
        for place in (config, inner if isinstance(inner, Mapping) else {}):
            for name in FIELDS:
                table = place.get(name)
                if table is not None:
                    return cls._of(name, table)
        return cls()

    @classmethod
    def _of(cls, name: str, table: Any) -> Settings:
        if not isinstance(table, Mapping):
            raise CorruptFileError(f"config.json: {name} is not an object.")
        method = table.get("quant_method", "")
        if not isinstance(method, str):
            raise CorruptFileError(f"config.json: quant_method is {method!a:.60}, not a text.")
        return cls(method.lower(), table)

    def check_method(self) -> None:
        """Raises UnsupportedError for a method without a reader, and for weights that lie in another space."""
        if self.method and self.method not in METHODS:
            raise UnsupportedError(
                f"The weights are quantised by {self.method!a:.60}, which this release does not read.",
                f"It reads {', '.join(METHODS)}, and weights that are not quantised.",
            )
        for name in ("transform_config", "sparsity_config"):
            table = self.table.get(name)
            if isinstance(table, Mapping) and table and table.get("format") != "dense":
                raise UnsupportedError(
                    f"config.json asks for a {name} of the weights, which this release does not apply.",
                    "Use a checkpoint without one.",
                )

    def groups(self) -> Iterator[Mapping[str, Any]]:
        """The descriptions of weights in the groups of compressed-tensors and ModelOpt."""
        groups = self.table.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                yield weights

    def block_sizes(self) -> Iterator[tuple[int, int]]:
        """The blocks [rows, cols] that weights may be scaled in, as the description names them."""
        named = [self.table.get("weight_block_size"), *(group.get("block_structure") for group in self.groups())]
        for block in named:
            size = _block_size(block)
            if size is not None:
                yield size


def _block_size(block: Any) -> tuple[int, int] | None:
    """Two sizes out of [128, 128] or "128x128"; None where nothing is said."""
    if block is None:
        return None
    sizes = block.split("x") if isinstance(block, str) else block
    try:
        rows, cols = (int(size) for size in sizes)
    except (TypeError, ValueError):
        raise CorruptFileError(f"config.json: {block!a:.60} is no block size.") from None
    if rows < 1 or cols < 1:
        raise CorruptFileError(f"config.json: {block!a:.60} is no block size.")
    return rows, cols
