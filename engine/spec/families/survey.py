"""What a release makes of a checkpoint that it may not know: how far config.json and tensors are understood."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any

from engine.base.errors import FreetokenError
from engine.base.nearest import nearest
from engine.spec.arrange import Tensors, compare
from engine.spec.families import FAMILIES, Family, decoder_config, find_family, spec_of
from engine.spec.families.build import build
from engine.spec.families.config import Config, Key
from engine.spec.families.wrappers import placed
from engine.spec.schema import Spec

# Fields of training, of text, of other software and of how transformers runs a model: none changes what is computed
# from token ids. Patterns as of fnmatch, matched at any depth.
HARMLESS = (
    "architectures", "model_type", "auto_map", "_name_or_path", "transformers_version", "*dtype", "*_token_id",
    "*_token_ids", "*_token_index", "*dropout*", "*dropout_p", "initializer*", "init_*", "use_cache",
    "cache_implementation", "is_decoder", "is_encoder_decoder", "id2label", "label2id", "problem_type", "return_dict",
    "output_*", "chunk_size_*", "*aux_loss*", "*z_loss*", "seq_aux", "*jitter*", "router_dtype", "*_parallel*",
    "ep_size", "pretraining_tp", "gradient_checkpointing", "attn_implementation", "_attn_implementation*",
    "_experts_implementation", "use_flash_attn*", "bos_token", "eos_token", "pad_token", "unk_token", "tokenizer_class",
    "task_specific_params", "quantization_config", "*vision*", "*audio*", "*image*", "*video*", "base_model_*_plan",
    "fused_experts", "name", "num_nextn_predict_layers", "mtp_*", "num_mtp_*", "use_mamba_kernels", "*_kernel",
    "rope_type", "type", "mamba_chunk_size", "chunk_size", "use_associative_scan", "num_logits_to_keep",
    "rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "moe_shared_expert_overlap",
    "qk_head_dim",
)  # fmt: skip
FEWEST = 0.3  # of all tensors have names of a family that is called near


@dataclass(frozen=True)
class Survey:
    """`family` is the one that config.json names, or where `known` is false the nearest one, "" if none is near.

    `explained` is the share of tensors whose names are among the family's. `unread` are fields of config.json that
    nothing reads and that may mean something. `missing` and `unexplained` are patterns of tensor names with how many
    fit each. `problem` is why there is no `spec`, or why its tensors could not be looked for.
    """

    family: str
    known: bool
    explained: float
    spec: Spec | None
    unread: tuple[str, ...]
    missing: Mapping[str, int]
    unexplained: Mapping[str, int]
    problem: FreetokenError | None


def survey(config: Mapping[str, Any], tensors: Tensors) -> Survey:
    """Look at a checkpoint's config.json, and at its tensors by name, codec and shape. Raises nothing."""
    try:
        family = find_family(config)
    except FreetokenError as problem:
        return _unknown(config, tensors, problem)
    share = explained(family, tensors)
    try:
        spec = spec_of(config, tensors)
    except FreetokenError as problem:
        return Survey(family.name, True, share, None, (), {}, {}, problem)
    unread = _unread(family, decoder_config(config))
    try:
        missing, unexplained = compare(spec, placed(family.names, tensors), tensors)
    except FreetokenError as problem:
        return Survey(family.name, True, share, spec, unread, {}, {}, problem)
    return Survey(family.name, True, share, spec, unread, grouped(missing), grouped(unexplained), None)


def explained(family: Family, tensors: Tensors) -> float:
    """The share of tensors whose names are among those of the family."""
    names = [re.sub(r"\d+", "0", name) for name in tensors]
    own = {
        re.sub(r"\d+", "0", source.tensor(0, 0, part))
        for source in placed(family.names, tensors).sources
        for part in range(len(source.parts))
    }
    return sum(name in own for name in names) / len(names) if names else 0.0


def grouped(names: Iterable[str]) -> Mapping[str, int]:
    """Tensor names that differ in numbers alone as one pattern, with a star for each number, and how many they are."""
    return dict(Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names))


def _unknown(config: Mapping[str, Any], tensors: Tensors, problem: FreetokenError) -> Survey:
    """The family whose tensors have most of these names; among equals the one whose own name is the nearest."""
    named = str(config.get("model_type") or "")
    alike = {name: -rank for rank, name in enumerate(nearest(named, FAMILIES))}
    best = max(FAMILIES.values(), key=lambda family: (explained(family, tensors), alike.get(family.name, -len(alike))))
    share = explained(best, tensors)
    return Survey(best.name if share >= FEWEST else "", False, share, None, (), {}, {}, problem)


def _unread(family: Family, config: Config) -> tuple[str, ...]:
    """What building a spec does not ask for; what the family takes for granted is no field of the checkpoint.

    A field of which the family's record knows the meaning is for layers that this model does not have.
    """
    noted = _Noted(config.data)
    build(family, Config(noted, config.where))
    known = {*family.defaults, *_names_in(family)}
    return tuple(name for name in noted.unread() if not _is_harmless(name) and name not in known)


def _names_in(rule: Any) -> Iterator[str]:
    """The fields of config.json that a record, or a part of one, names."""
    if isinstance(rule, Key):
        yield from rule.names
        yield from _names_in(rule.default)
    elif isinstance(rule, tuple):
        for each in rule:
            yield from _names_in(each)
    elif is_dataclass(rule) and not isinstance(rule, type):
        for each in fields(rule):
            yield from _names_in(vars(rule)[each.name])


def _is_harmless(name: str) -> bool:
    field = name.rpartition(".")[2]
    return any(fnmatchcase(field, pattern) for pattern in HARMLESS)


class _Noted(dict[str, Any]):
    """A JSON object that keeps in mind which of its fields were asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__({name: _Noted(item) if isinstance(item, dict) else item for name, item in data.items()})
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def unread(self) -> list[str]:
        """Fields that say something and were not asked for, those of objects as `object.field`."""
        found = []
        for name, item in self.items():
            if name not in self.read:
                found += [name] if item not in (None, False, "", [], {}) and not _is_harmless(name) else []
            elif isinstance(item, _Noted):
                found += [f"{name}.{field}" for field in item.unread()]
        return found
