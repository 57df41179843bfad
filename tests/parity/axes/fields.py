"""Which fields of a schema differ between models, which of them an axis changes, and which only weights can change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from engine.base.errors import FreetokenError
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.spec.tensors import expert_tensors, layer_tensors, outer_tensors

Field = tuple[str, str]
"""The name of a schema's class, and of one of its fields."""

NEEDS_NO_AXIS: Mapping[Field, str] = {
    ("Spec", "family"): "names tensors alone, which a conversion has read",
    ("Spec", "context_length"): "a limit: no operation reads it",
    ("Spec", "streams"): "without them hidden states are narrower, and not to be compared; their fields have axes",
    ("Layer", "mixer"): "parts of another kind have other tensors; the fields of each have axes",
    ("Layer", "ffn"): "parts of another kind have other tensors; the fields of each have axes",
    ("DeltaNet", "channelwise"): "where the decay has a rank, which implies it; elsewhere a size",
    ("Attention", "v_dim"): "a size; 0 and head_dim say the same",
    ("Experts", "bias"): "dropped with the tensors themselves, by `expert biases dropped`",
}


def values_of(specs: Iterable[Spec]) -> dict[Field, set[Any]]:
    """Every field of every dataclass in the specs with the values it has; a dataclass counts by its type."""
    found: dict[Field, set[Any]] = {}
    for spec in specs:
        for node in _nodes(spec):
            for field in fields(node):
                value = getattr(node, field.name)
                if not _is_list_of_nodes(value):
                    found.setdefault((type(node).__name__, field.name), set()).add(
                        type(value).__name__ if is_dataclass(value) else value
                    )
    return found


def changed_fields(before: Any, after: Any) -> Iterator[Field]:
    """The fields in which two specs of one structure differ."""
    for field in fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if _is_list_of_nodes(old):
            for pair in zip(old, new, strict=True):
                yield from changed_fields(*pair)
        elif is_dataclass(old) and type(old) is type(new):
            yield from changed_fields(old, new)
        else:
            yield type(before).__name__, field.name


def is_fixed_by_weights(specs: Iterable[Spec], field: Field, values: Iterable[Any]) -> bool:
    """Whether no other value of a field gives a model that the same weights could be loaded into: it is a size."""
    for spec in specs:
        for value in values:
            try:
                changed = _with_field(spec, field, value)
                loads = changed != spec and tensors_of(changed) <= tensors_of(spec)
            except (FreetokenError, TypeError, AttributeError):  # a value of another type, or that makes no sense here
                continue
            if loads:
                return False
    return True


def _with_field(node: Any, field: Field, value: Any) -> Any:
    """The same with a value in every dataclass of the field's class."""
    if isinstance(node, tuple):
        return tuple(_with_field(item, field, value) for item in node)
    if not is_dataclass(node):
        return node
    changes = {each.name: _with_field(getattr(node, each.name), field, value) for each in fields(node)}
    owner, name = field
    return replace(node, **changes | ({name: value} if type(node).__name__ == owner else {}))


def tensors_of(spec: Spec) -> frozenset[Any]:
    """Every tensor that a model needs, and its size."""
    found = {(-1, wanted) for wanted in outer_tensors(spec)}
    for number, layer in enumerate(spec.layers):
        found.update((number, wanted) for wanted in layer_tensors(spec, number))
        if isinstance(layer.ffn, Moe):
            moe = layer.ffn
            found.update((number, moe.experts.count, wanted) for wanted in expert_tensors(spec, moe))
    return frozenset(found)


def _nodes(node: Any) -> Iterator[Any]:
    """A dataclass and all inside it."""
    yield node
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if is_dataclass(item):
                yield from _nodes(item)


def _is_list_of_nodes(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and is_dataclass(value[0])
