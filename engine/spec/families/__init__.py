"""Families: from a checkpoint's config.json and tensor names to what a model is and where its weights lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.base.nearest import did_you_mean
from engine.spec.arrange import Tensors, arrange
from engine.spec.families.bailing import BAILING_FAMILIES
from engine.spec.families.build import build
from engine.spec.families.config import Config
from engine.spec.families.deepseek import DEEPSEEK_FAMILIES
from engine.spec.families.deepseek_v4 import DEEPSEEK_V4_FAMILIES
from engine.spec.families.delta import DELTA_FAMILIES
from engine.spec.families.dense import DENSE_FAMILIES
from engine.spec.families.dense_fused import DENSE_FUSED_FAMILIES
from engine.spec.families.ernie import ERNIE_FAMILIES
from engine.spec.families.gemma import GEMMA_FAMILIES
from engine.spec.families.gemma_dense import GEMMA_DENSE_FAMILIES
from engine.spec.families.glm_next import GLM_NEXT_FAMILIES
from engine.spec.families.granite_shared import GRANITE_SHARED_FAMILIES
from engine.spec.families.head_gates import HEAD_GATE_FAMILIES
from engine.spec.families.hunyuan import HUNYUAN_FAMILIES
from engine.spec.families.hybrid import HYBRID_FAMILIES
from engine.spec.families.indexed import INDEXED_FAMILIES
from engine.spec.families.jet import JET_FAMILIES
from engine.spec.families.latent import LATENT_FAMILIES
from engine.spec.families.layer_norms import LAYER_NORM_FAMILIES
from engine.spec.families.llama4 import LLAMA4
from engine.spec.families.local import LOCAL_FAMILIES
from engine.spec.families.longcat import LONGCAT_FAMILIES
from engine.spec.families.minimax import MINIMAX_FAMILIES
from engine.spec.families.near_positions import NEAR_POSITION_FAMILIES
from engine.spec.families.parallel import PARALLEL_FAMILIES
from engine.spec.families.post_norm import POST_NORM_FAMILIES
from engine.spec.families.record import Family
from engine.spec.families.sigmoid_routed import SIGMOID_ROUTED_FAMILIES
from engine.spec.families.sparse import SPARSE_FAMILIES
from engine.spec.families.wrappers import WRAPPERS, described_decoder, placed
from engine.spec.layout import Layout
from engine.spec.schema import Spec

__all__ = [
    "FAMILIES",
    "Family",
    "Tensors",
    "decoder_config",
    "find_family",
    "is_known",
    "layout",
    "resolve",
    "spec_from_config",
    "spec_of",
]

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *DENSE_FAMILIES,
        *DENSE_FUSED_FAMILIES,
        *SPARSE_FAMILIES,
        *DEEPSEEK_FAMILIES,
        *DEEPSEEK_V4_FAMILIES,
        *LATENT_FAMILIES,
        *DELTA_FAMILIES,
        *HYBRID_FAMILIES,
        *BAILING_FAMILIES,
        *LONGCAT_FAMILIES,
        *MINIMAX_FAMILIES,
        *SIGMOID_ROUTED_FAMILIES,
        *INDEXED_FAMILIES,
        *GLM_NEXT_FAMILIES,
        *ERNIE_FAMILIES,
        *LOCAL_FAMILIES,
        *NEAR_POSITION_FAMILIES,
        *HEAD_GATE_FAMILIES,
        LLAMA4,
        *GEMMA_DENSE_FAMILIES,
        *GEMMA_FAMILIES,
        *POST_NORM_FAMILIES,
        *HUNYUAN_FAMILIES,
        *GRANITE_SHARED_FAMILIES,
        *PARALLEL_FAMILIES,
        *LAYER_NORM_FAMILIES,
        *JET_FAMILIES,
    )
}
_BY_MODEL_TYPE = {
    name: replace(family, defaults={**family.defaults, **family.also_defaults.get(name, {})})
    for family in FAMILIES.values()
    for name in (family.name, *family.also)
}


def resolve(config: Mapping[str, Any], tensors: Tensors) -> tuple[Spec, Layout]:
    """What the model is and where its weights lie; the way for a conversion.

    `tensors` maps every name in the checkpoint to its codec and shape. Whether the head has a matrix of its own is
    the checkpoint's to say; only one that is promised in so many words and absent is an error.
    """
    spec = spec_of(config, tensors)
    return spec, layout(spec, tensors)


def spec_of(config: Mapping[str, Any], tensors: Tensors) -> Spec:
    """What the model is, where its checkpoint has `tensors` of these names; raises as `spec_from_config` does."""
    spec = spec_from_config(config)
    promised = any(part.get("tie_word_embeddings") is False for part in (config, decoder_config(config).data))
    names = placed(find_family(config).names, tensors)
    has_head = any(source.template in tensors for source in names.holding("head"))
    return replace(spec, tied_head=not has_head and not promised)


def spec_from_config(config: Mapping[str, Any]) -> Spec:
    """Read a config.json. Raises UnsupportedError for an unknown family or setting, CorruptFileError for bad values."""
    return build(find_family(config), decoder_config(config))


def decoder_config(config: Mapping[str, Any]) -> Config:
    """The part of config.json that describes the decoder."""
    family, described = find_family(config), described_decoder(config)
    if described is not None:
        return Config(_completed(family, described))
    whole = Config(config)
    part = whole.inner(family.inside) if config.get(family.inside) is not None else whole
    return Config(_completed(family, part.data), part.where)


def _completed(family: Family, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with the family's defaults for what is not there."""
    defaults = family.defaults
    return {
        **defaults,
        **{
            name: each for name, each in data.items() if each is not None or not isinstance(defaults.get(name), Mapping)
        },
    }


def is_known(model_type: str) -> bool:
    """Whether this release runs the models that call themselves so."""
    wrapper = WRAPPERS.get(model_type)
    return model_type in _BY_MODEL_TYPE or (wrapper is not None and wrapper.decoder in _BY_MODEL_TYPE)


def layout(spec: Spec, tensors: Tensors) -> Layout:
    """Where a checkpoint keeps the spec's tensors; raises as `engine.spec.arrange.arrange` does."""
    if spec.family not in FAMILIES:
        raise _unknown(spec.family)
    return arrange(spec, placed(FAMILIES[spec.family].names, tensors), tensors)


def find_family(config: Mapping[str, Any]) -> Family:
    """The family that config.json, or the decoder inside it, names by `model_type`; failing that its architecture's."""
    config = described_decoder(config) or config
    model_type = config.get("model_type")
    named = config.get("architectures")
    architectures = named if isinstance(named, list) else []
    if isinstance(model_type, str) and model_type:
        if model_type not in _BY_MODEL_TYPE:
            raise _unknown(model_type)
        return _BY_MODEL_TYPE[model_type]
    for family in FAMILIES.values():
        if family.architecture in architectures:
            return family
    if architectures:
        raise _unknown(str(architectures[0]))
    raise CorruptFileError("config.json names no model_type.", "Check the model's config.json, or fetch it again.")


def _unknown(name: str) -> UnsupportedError:
    remedy = f"{did_you_mean(name, FAMILIES)} It runs {', '.join(sorted(FAMILIES))}.".lstrip()
    return UnsupportedError(f"The model family {name!r} is not one that this release runs.", remedy)
