"""What config.json says of how its weights are quantised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError

FIELDS = ("quantization_config", "compression_config")
# The methods whose layouts have a reader. Each may be met in any of them: the tensors decide.
METHODS = (
    "auto-round", "awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "modelopt_fp4",
    "modelopt_mixed", "mxfp4", "mxfp8",
)  # fmt: skip
_REMEDY = "Fetch config.json again, or correct it."
AUTO_ROUND = "auto-round"
# What auto-round calls the layouts of others that it writes, and whose they are. Other layouts keep zero points apart.
PACKINGS = {"auto_round:auto_gptq": "gptq", "auto_gptq": "gptq", "auto_round:auto_awq": "awq", "auto_awq": "awq"}


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
            raise CorruptFileError(f"config.json: {name} is not an object.", _REMEDY)
        method = table.get("quant_method", "")
        if not isinstance(method, str):
            raise CorruptFileError(f"config.json: quant_method is {method!a:.60}, not a text.", _REMEDY)
        return cls(method.lower().removeprefix("intel/"), table)

    @property
    def layout(self) -> str:
        """The method whose layout the tensors have: that of auto-round is one that its packing_format names."""
        return PACKINGS.get(self._packing, "") if self.method == AUTO_ROUND else self.method

    @property
    def _packing(self) -> str:
        return self.text("packing_format", default="auto_round:auto_gptq")

    def check_method(self) -> None:
        """Raises UnsupportedError for a method without a reader, and for weights that lie in another space."""
        if self.method and self.method not in METHODS:
            raise UnsupportedError(
                f"The weights are quantised by {self.method!a:.60}, which this release does not read.",
                f"It reads {', '.join(METHODS)}, and weights that are not quantised.",
            )
        if self.method == AUTO_ROUND and not self.layout:
            raise UnsupportedError(
                f"The weights are in the format {self._packing!a:.60} of auto-round, which this release does not read.",
                f"It reads {', '.join(PACKINGS)}.",
            )
        for name in ("transform_config", "sparsity_config"):
            table = self.table.get(name)
            if isinstance(table, Mapping) and table and table.get("format") != "dense":
                raise UnsupportedError(
                    f"config.json asks for a {name} of the weights, which this release does not apply.",
                    "Use a checkpoint without one.",
                )

    def of_matrix(self, name: str) -> Settings:
        """The settings of the matrix X.weight called `name`, for which auto-round may have some of its own under X."""
        extra = self.table.get("extra_config")
        own = extra.get(name.removesuffix(".weight")) if isinstance(extra, Mapping) else None
        return replace(self, table={**self.table, **own}) if isinstance(own, Mapping) else self

    def integer(self, *names: str, default: int) -> int:
        """The first of `names` that is given. Raises CorruptFileError for one that is no whole number."""
        for name in names:
            value = self.table.get(name)
            if value is not None:
                if type(value) is not int:
                    raise _mistyped(name, value, "a whole number")
                return value
        return default

    def flag(self, name: str, default: bool) -> bool:
        """Raises CorruptFileError for what is neither true nor false."""
        value = self.table.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _mistyped(name, value, "true or false")
        return value

    def text(self, *names: str, default: str) -> str:
        """The first of `names` that is given, in lower case. Raises CorruptFileError for one that is no text."""
        for name in names:
            value = self.table.get(name)
            if value is not None:
                if not isinstance(value, str):
                    raise _mistyped(name, value, "a text")
                return value.lower()
        return default

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


def _mistyped(name: str, value: object, expected: str) -> CorruptFileError:
    return CorruptFileError(f"config.json: {name} of the quantisation is {value!a:.60}, not {expected}.", _REMEDY)


def _block_size(block: Any) -> tuple[int, int] | None:
    """Two sizes out of [128, 128] or "128x128"; None where nothing is said."""
    if block is None:
        return None
    sizes = block.split("x") if isinstance(block, str) else block
    try:
        rows, cols = (int(size) for size in sizes)
    except (TypeError, ValueError):
        raise CorruptFileError(f"config.json: {block!a:.60} is no block size.", _REMEDY) from None
    if rows < 1 or cols < 1:
        raise CorruptFileError(f"config.json: {block!a:.60} is no block size.", _REMEDY)
    return rows, cols
