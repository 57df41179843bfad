"""Rules that say under which names a checkpoint keeps the tensors of a family."""

from __future__ import annotations

from dataclasses import dataclass

STACKED, STRIDED, PER_HEAD, BLOCKS = "stacked", "strided", "per_head", "blocks"
PLUS_ONE_ENDING = ".plus_one"
"""A checkpoint that has one added already to what others keep without has T.plus_one instead of T."""


@dataclass(frozen=True)
class Source:
    """One checkpoint tensor, `template` filled with the layer's and the expert's number, and what of ours it holds.

    `holds` lists keys in row order. Stacked: one after the other. Strided: rows in turn. Per head: for every head the
    rows of the first, then those of the next. Blocks: of one key, its blocks of rows along a leading dimension.
    `flipped`: the checkpoint keeps the whole tensor transposed ([in, out]). `transposed` are keys that we keep
    transposed, head by head. A template without `{expert}` that is used for an expert has a leading dimension of
    experts; where it is `folded`, that dimension and the next are one, and it holds one key.

    Where a checkpoint counts two of our layers as one, its number is `{pair}`, and ours in it `{half}`. Where the
    template has a `{part}`, what it holds lies in several tensors of equal size, one for each of `parts`, in this
    order. Vectors only: `flat` says that the tensor may have any shape of as many values, `plus` is added to each.
    """

    template: str
    holds: tuple[str, ...]
    arrangement: str = STACKED
    flipped: bool = False
    transposed: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("",)
    flat: bool = False
    plus: float = 0.0
    folded: bool = False

    def tensor(self, layer: int, expert: int, part: int = 0) -> str:
        """The name of the tensor that holds a part; most have only the one."""
        pair, half = divmod(layer, 2)
        return self.template.format(layer=layer, pair=pair, half=half, expert=expert, part=self.parts[part])

    @property
    def per_expert(self) -> bool:
        return "{expert}" in self.template


@dataclass(frozen=True)
class Skipped:
    """Tensors that a conversion leaves out: an fnmatch pattern of their names, and what they are for.

    `{next}` in a pattern stands for every layer number beyond the last, `{zero}` for every expert that computes
    nothing.
    """

    pattern: str
    purpose: str


@dataclass(frozen=True)
class Names:
    """All rules of a family. Where several sources hold a key, the first that a checkpoint has is taken."""

    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()

    def holding(self, key: str) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if key in source.holds)
