"""Models that also see or hear, whose decoder is of a family of its own: where its config and its tensors are.

What such a model does with text alone is what its decoder does; tensors of the other parts are left out and counted.
Positions in three axes are those of text, where all three are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.spec.arrange import Tensors
from engine.spec.names import Names, Skipped, Source

HEAD, DECODER = "lm_head.", "model."


@dataclass(frozen=True)
class Wrapper:
    """A kind of model by its model_type. `inside` is the path to the object of config.json that describes its decoder.

    `decoder` is the model_type of a decoder whose description names none, or which config.json itself describes.
    """

    name: str
    decoder: str = ""
    inside: str = "text_config"


WRAPPERS: Mapping[str, Wrapper] = {
    wrapper.name: wrapper
    for wrapper in (
        Wrapper("glm4v_moe", "glm4v_moe_text"),  # GLM-4.5V and 4.6V
        Wrapper("internvl"),
        Wrapper("internvl_chat", inside="llm_config"),
        Wrapper("kimi_k25", "deepseek_v3"),
        Wrapper("kimi_vl", "deepseek_v3"),
        Wrapper("llava", "llama"),
        Wrapper("llava_next", "llama"),
        Wrapper("mistral3", "mistral"),
        Wrapper("qwen2_vl", "qwen2_vl_text"),
        Wrapper("qwen2_5_vl", "qwen2_5_vl_text"),
        Wrapper("qwen3_omni_moe", "qwen3_omni_moe_text", inside="thinker_config.text_config"),
        Wrapper("qwen3_vl", "qwen3_vl_text"),
        Wrapper("qwen3_vl_moe", "qwen3_vl_moe_text"),
        Wrapper("step3p7", "step3p5"),
    )
}

# What the decoder's tensors and its head begin with, where these are not DECODER and HEAD.
PREFIXES = (
    ("model.language_model.", HEAD),
    ("language_model.model.", "language_model.lm_head."),
    ("thinker.model.", "thinker.lm_head."),
)


def described_decoder(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config of the decoder inside a wrapper, with its model_type; None where config.json is that of a decoder."""
    wrapper = WRAPPERS.get(str(config.get("model_type")))
    if wrapper is None:
        return None
    found: Any = config
    for name in wrapper.inside.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    decoder = found if isinstance(found, Mapping) else config
    named = decoder.get("model_type")
    return {**decoder, "model_type": wrapper.decoder if named in (None, wrapper.name) else named}


def placed(names: Names, tensors: Tensors) -> Names:
    """The rules for where a checkpoint keeps the decoder: as they are, or under a prefix that it has."""
    for decoder, head in PREFIXES:
        moved = tuple(_moved(source, decoder, head) for source in names.sources)
        if any(source.template in tensors for source in moved if "embed" in source.holds):
            skipped = tuple(_elsewhere(rule, decoder) for rule in names.skipped)
            return replace(names, sources=(*moved, *names.sources), skipped=(*skipped, *names.skipped))
    return names


def _moved(source: Source, decoder: str, head: str) -> Source:
    for prefix, other in ((DECODER, decoder), (HEAD, head)):
        if source.template.startswith(prefix):
            return replace(source, template=other + source.template.removeprefix(prefix))
    return source


def _elsewhere(rule: Skipped, decoder: str) -> Skipped:
    if not rule.pattern.startswith(DECODER):
        return rule
    return replace(rule, pattern=decoder + rule.pattern.removeprefix(DECODER))
