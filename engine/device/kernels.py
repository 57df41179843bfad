"""The table of kernels: where each lies, and the types of its parameters, by which launches are checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from engine.files.codecs import CODECS

CODEC = "{codec}"


@dataclass(frozen=True)
class KernelSource:
    """A kernel, or, with `{codec}` in its name, one for each codec.

    `file` lies in native/cuda. A letter of `parameters` is p: pointer, i: int32, u: uint32, l: uint64, f: float32.
    """

    name: str
    file: str
    parameters: str


# fmt: off
KERNELS: tuple[KernelSource, ...] = (
    # the expert cache
    KernelSource("plan", "plan.cu", "ppppppppiiiipppp"),
    KernelSource("fill", "fill.cu", "pulpppl"),
    KernelSource("place_pairs", "place.cu", "piippiip"),
    KernelSource("stage", "stage.cu", "pipppiippp"),
    KernelSource("merge", "merge.cu", "pippipppiipi"),
    KernelSource("stamp", "stamp.cu", "p"),
    # products
    KernelSource("pack_q16", "pack.cu", "pippiipi"),
    KernelSource("gather_f32", "pack.cu", "pippiipi"),
    KernelSource("linear_{codec}", "linear.cu", "piipippfpi"),
    KernelSource("linear_many_{codec}", "linear_many.cu", "piipippfpi"),
    KernelSource("head_linear_{codec}", "head_linear.cu", "piipipiippii"),
    KernelSource("expert_{codec}", "expert.cu", "plliipiiipippi"),
    KernelSource("expert_many_{codec}", "expert_many.cu", "plliipiiipippipp"),
    KernelSource("expert_glu", "expert_glu.cu", "pllliiiffpipipipi"),
    KernelSource("expert_bias", "expert_glu.cu", "pllipipipi"),
    KernelSource("group_pairs", "group.cu", "pppiiipp"),
    # operations on rows
    KernelSource("embed_{codec}", "embed.cu", "pippfpi"),
    KernelSource("rms_norm", "norm.cu", "pipfippi"),
    KernelSource("layer_norm", "norm.cu", "pippfippi"),
    KernelSource("l2_norm", "norm.cu", "pifippi"),
    KernelSource("gated_norm", "norm.cu", "pipipifiiippi"),
    KernelSource("rope", "rope.cu", "piiiiippp"),
    KernelSource("route", "route.cu", "pipiiiiiiiffppppppp"),
    KernelSource("choose_smallest", "choose.cu", "ppppiiiiipi"),
    KernelSource("head_copy", "rows.cu", "piiiippii"),
    KernelSource("glu_rows", "rows.cu", "pipiiiffppi"),
    KernelSource("sigmoid_gate", "rows.cu", "pipiiippi"),
    KernelSource("gate_rows", "rows.cu", "pipiiiippi"),
    KernelSource("relu2_rows", "rows.cu", "piippi"),
    KernelSource("bound_rows", "rows.cu", "piifippi"),
    KernelSource("decay_rows", "rows.cu", "pipipfippi"),
    KernelSource("scale_rows", "rows.cu", "pipfip"),
    KernelSource("add_rows", "rows.cu", "pipifippi"),
    KernelSource("stream_weights_rows", "streams.cu", "pippiifp"),
    KernelSource("collapse_rows", "streams.cu", "pipiiippi"),
    KernelSource("expand_rows", "streams.cu", "pipipiiip"),
    KernelSource("select_rows", "rows.cu", "pipippi"),
)
# fmt: on

_SLOTS = {"p": "Q", "l": "Q", "i": "i4x", "u": "I4x", "f": "f4x"}


@dataclass(frozen=True)
class KernelSignature:
    """One kernel by its full name."""

    name: str
    file: str
    parameters: str
    codec: str | None

    def pack(self, args: Sequence[int | float]) -> bytes:
        """The values as 8-byte slots, each in the low bytes of its own. AssertionError for what does not fit."""
        try:
            return _packer(self.parameters).pack(*args)
        except struct.error as error:
            raise AssertionError(f"{self.name} takes {self.parameters!r}, not {tuple(args)}: {error}") from error


@cache
def _packer(parameters: str) -> struct.Struct:
    return struct.Struct("<" + "".join(_SLOTS[letter] for letter in parameters))


@cache
def signatures() -> dict[str, KernelSignature]:
    """Every kernel of the table by its full name."""
    found: dict[str, KernelSignature] = {}
    for source in KERNELS:
        codecs: Sequence[str | None] = tuple(CODECS) if CODEC in source.name else (None,)
        for codec in codecs:
            name = source.name if codec is None else source.name.replace(CODEC, codec)
            assert name not in found, f"two kernels are called {name}"
            assert set(source.parameters) <= set(_SLOTS), f"{name} has parameters of an unknown type"
            found[name] = KernelSignature(name, source.file, source.parameters, codec)
    return found


def signature(name: str) -> KernelSignature:
    """A kernel by its full name. AssertionError for one that the table does not have."""
    known = signatures()
    assert name in known, f"there is no kernel {name}"
    return known[name]
