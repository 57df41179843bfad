"""Quantised checkpoints as tensors of our raw forms, under the names that unquantised ones would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.quantised.awq import awq
from engine.files.sources.quantised.bundle import Bundle, sort
from engine.files.sources.quantised.fp8 import fp8
from engine.files.sources.quantised.gptq import gptq
from engine.files.sources.quantised.int4 import Int4Tensor
from engine.files.sources.quantised.mxfp4 import mxfp4
from engine.files.sources.quantised.nvfp4 import nvfp4
from engine.files.sources.quantised.packed_ints import packed_ints
from engine.files.sources.quantised.scheme import Scheme
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor, SourceTensor
from engine.spec.layout import ORDER

# The first that knows a bundle's layout presents it; no two know the same.
SCHEMES: tuple[Scheme, ...] = (fp8, nvfp4, mxfp4, gptq, awq, packed_ints)


def present(raw: Mapping[str, FileTensor], config: Mapping[str, Any]) -> Mapping[str, SourceTensor]:
    """The tensors of a checkpoint, each quantised matrix as one tensor of a raw form.

    `raw` are the tensors as safetensors files hold them, their forms being the types' names in lower case; `config` is
    config.json. What the tensors are decides how they are read; config.json only settles what they leave open. Scales,
    zero points and the like vanish, but for those of activations and of the cache, which a family's rules leave out; a
    matrix whose columns are stored in another order gets a companion (`engine.spec.layout.ORDER`). Without quantised
    matrices all is as it was.

    Errors, naming the tensor: CorruptFileError for a scale without its weight, a weight without its scale and parts
    that do not fit each other, UnsupportedError for a method or layout without a reader.
    """
    sorted_ = sort(raw)
    if not sorted_.bundles:
        return raw
    settings = Settings.read(config)
    settings.check_method()
    presented = {name: _presented(bundle, settings.of_matrix(name)) for name, bundle in sorted_.bundles.items()}
    orders = {
        name + ORDER: tensor.order
        for name, tensor in presented.items()
        if isinstance(tensor, Int4Tensor) and tensor.order is not None
    }
    return {**sorted_.plain, **presented, **orders}


def _presented(bundle: Bundle, settings: Settings) -> SourceTensor:
    for scheme in SCHEMES:
        tensor = scheme(bundle, settings)
        if tensor is not None:
            return tensor
    if bundle.parts.keys() == {bundle.weight_role}:
        return _alone(bundle)
    parts = ", ".join(bundle.describe(role) for role in bundle.parts)
    raise UnsupportedError(
        f"The tensor {bundle.name} is kept in a way that this release does not read: {parts}.",
        "docs/checkpoints.md lists what it reads.",
    )


def _alone(bundle: Bundle) -> SourceTensor:
    """A weight without company: a float without its scale means nothing; an integer may be no weight at all."""
    if bundle.weight_role == "weight" and not bundle.form("weight").startswith("f"):
        return bundle.parts["weight"]
    raise CorruptFileError(
        f"The tensor {bundle.describe(bundle.weight_role)} has no scale, and means nothing without one.",
        "Fetch the checkpoint again, or another one.",
    )
