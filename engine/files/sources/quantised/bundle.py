"""Which tensors of a checkpoint belong together: a weight, and what it is scaled, shifted and packed by.

Checkpoints keep what belongs to `X.weight` under names of many habits. A table maps each to a role, so that the readers
of one layout or another look for roles alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.tensors import FileTensor


@dataclass(frozen=True)
class Ending:
    """A tensor named X + `text` plays `role` for the matrix named X + `of`.

    Where `beside` is given it does so only if X + `beside` is there and of a type that weights are packed in: the
    ending alone could mean something else.
    """

    text: str
    role: str
    of: str = ".weight"
    beside: str | None = None


# An ending that is part of another comes after it.
ENDINGS = (
    # a module X with the matrix X.weight
    Ending(".weight", "weight"),
    Ending(".weight_packed", "packed"),
    Ending(".weight_scale_inv", "scale"),
    Ending(".weight_scale_2", "scale_2"),
    Ending(".weight_scale", "scale"),
    Ending(".scale_weight", "scale"),
    Ending(".qscale_weight", "scale"),
    Ending(".scale", "scale", beside=".weight"),
    Ending(".weight_global_scale", "global_scale"),
    Ending(".weight_zero_point", "zero_point"),
    Ending(".weight_shape", "shape"),
    Ending(".weight_g_idx", "g_idx"),
    Ending(".pre_quant_scale", "pre_quant_scale"),
    Ending(".qweight", "qweight"),
    Ending(".qzeros", "qzeros"),
    Ending(".scales", "scales", beside=".qweight"),
    Ending(".g_idx", "g_idx"),
    # experts of a layer in one matrix X
    Ending("_blocks", "blocks", of="_blocks", beside="_blocks"),
    Ending("_scales", "scale", of="_blocks", beside="_blocks"),
    Ending("_weight_packed", "packed", of=""),
    Ending("_weight_scale_inv", "scale", of=""),
    Ending("_weight_scale_2", "scale_2", of=""),
    Ending("_weight_scale", "scale", of=""),
    Ending("_weight_global_scale", "global_scale", of=""),
    Ending("_weight_zero_point", "zero_point", of=""),
    Ending("_weight_shape", "shape", of=""),
    Ending("_scale_inv", "scale", of=""),
    Ending("_scale_2", "scale_2", of="", beside=""),
    Ending("_scale", "scale", of="", beside=""),
)

# The types, as safetensors name them, that the weight itself is in when it is quantised.
PACKED_TYPES = frozenset({"i32", "u32", "i8", "u8", "f4", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"})
_FETCH = "Fetch the checkpoint again, and check that all its files are of one version."
_WEIGHT_ROLES = frozenset({"weight", "packed", "blocks", "qweight"})


@dataclass
class Bundle:
    """The tensors of one quantised matrix by role. `name` is the matrix's, `names` are the tensors' own."""

    name: str
    parts: dict[str, FileTensor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, role: str, name: str, tensor: FileTensor) -> None:
        rivals = _WEIGHT_ROLES if role in _WEIGHT_ROLES else {role}
        for rival in rivals & self.parts.keys():
            raise CorruptFileError(
                f"The checkpoint has both {self.names[rival]} and {name}, of which {self.name} needs one.", _FETCH
            )
        self.parts[role], self.names[role] = tensor, name

    def has(self, *roles: str) -> bool:
        """Whether all of `roles` are there."""
        return self.parts.keys() >= set(roles)

    @property
    def weight_role(self) -> str:
        """The role in which the weight itself is there: weight, packed, blocks or qweight."""
        return next(role for role in self.parts if role in _WEIGHT_ROLES)

    def form(self, role: str) -> str:
        """The type of a part, as safetensors names it in lower case; "" for one that is not there."""
        return self.parts[role].form if role in self.parts else ""

    def describe(self, role: str) -> str:
        """A part for a sentence: its name, type and shape."""
        part = self.parts[role]
        return f"{self.names[role]} ({part.form} {list(part.shape)})"

    def refuse(self, *roles: str) -> None:
        """Raises UnsupportedError if a part of one of `roles` is there: the layout cannot have it."""
        for role in roles:
            if role in self.parts:
                raise UnsupportedError(
                    f"The tensor {self.name} comes with {self.describe(role)}, which this release does not apply.",
                    "Use a checkpoint of this model that is quantised in another way.",
                )

    def misfit(self, role: str, expected: str) -> CorruptFileError:
        """The error for a part whose type or shape does not go with the weight."""
        return CorruptFileError(f"{self.describe(role)} does not fit {self.name}: it has to be {expected}.", _FETCH)

    @property
    def is_quantised(self) -> bool:
        return self.parts.keys() != {"weight"} or self.form("weight") in PACKED_TYPES


@dataclass(frozen=True)
class Sorted:
    """A checkpoint's tensors: quantised matrices by their names, and the others by theirs."""

    bundles: Mapping[str, Bundle]
    plain: Mapping[str, FileTensor]


def sort(raw: Mapping[str, FileTensor]) -> Sorted:
    """Finds the quantised matrices of a checkpoint; without any, every tensor is plain.

    Raises CorruptFileError, naming it, for a tensor that belongs to a matrix which is not there.
    """
    bundles: dict[str, Bundle] = {}
    company: list[tuple[str, str, str]] = []
    for name, tensor in raw.items():
        role, matrix = _role(name, raw)
        if role in _WEIGHT_ROLES:
            bundles.setdefault(matrix, Bundle(matrix)).add(role, name, tensor)
        elif role:
            company.append((name, role, matrix))
    for name, role, matrix in company:
        if matrix in raw and matrix not in bundles:
            bundles[matrix] = Bundle(matrix, {"weight": raw[matrix]}, {"weight": matrix})
        if matrix not in bundles:
            raise CorruptFileError(
                f"The checkpoint has {name} but not {matrix}, which it belongs to.",
                _FETCH,
            )
        bundles[matrix].add(role, name, raw[name])
    quantised = {name: found for name, found in bundles.items() if found.is_quantised}
    used = {name for found in quantised.values() for name in found.names.values()}
    return Sorted(quantised, {name: tensor for name, tensor in raw.items() if name not in used})


def _role(name: str, raw: Mapping[str, FileTensor]) -> tuple[str, str]:
    """The role of a tensor and the name of the matrix that it belongs to; "" and itself for a tensor on its own."""
    for ending in ENDINGS:
        if name.endswith(ending.text):
            stem = name.removesuffix(ending.text)
            beside = raw.get(stem + ending.beside) if ending.beside is not None else None
            if ending.beside is None or (beside is not None and beside.form in PACKED_TYPES):
                return ending.role, stem + ending.of
    packed = raw[name].form in PACKED_TYPES and len(raw[name].shape) > 1
    return ("weight" if packed else ""), name
