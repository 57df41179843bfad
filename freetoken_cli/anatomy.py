"""What a converted model is made of: its tensors by class, with the codec and the bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from engine.base.units import format_size
from engine.files.ftw.manifest import BankInfo, Manifest, Shape
from engine.spec.attention import Attention, LatentAttention
from engine.spec.feed_forward import Moe
from engine.spec.recurrent import DeltaNet, Mamba, Mamba2, ShortConv
from engine.spec.schema import Spec

# By the part of a tensor's name that follows its layer; engine/spec/tensors.py has the names.
_CLASSES = {
    "embed": "embedding",
    "head": "head",
    "attn": "attention",
    "delta": "recurrences",
    "mamba": "recurrences",
    "conv": "recurrences",
    "ffn": "dense layers",
    "shared": "shared experts",
    "router": "router",
}
_EXPERTS, _VECTORS, _OTHER = "experts", "norms and biases", "others"


@dataclass(frozen=True)
class TensorClass:
    """All tensors of one class that share a codec."""

    name: str
    codec: str
    size: int


def tensor_classes(manifest: Manifest) -> list[TensorClass]:
    """The classes of a model, the largest first."""
    sizes: dict[tuple[str, str], int] = {}
    for name, codec, size in _tensors(manifest):
        sizes[name, codec] = sizes.get((name, codec), 0) + size
    found = [TensorClass(name, codec, size) for (name, codec), size in sizes.items()]
    return sorted(found, key=lambda each: -each.size)


def _tensors(manifest: Manifest) -> Iterator[tuple[str, str, int]]:
    """Class, codec and bytes of every tensor."""
    for name, info in manifest.dense.items():
        yield _dense_class(name, info.shape), info.shape.codec, info.shape.stored_bytes()
    for bank in manifest.banks:
        records = bank.experts_per_layer * len(bank.layers)
        for field in bank.fields:
            name = _VECTORS if field.shape.vector else _EXPERTS
            yield name, field.shape.codec, field.stored_bytes * records


def _dense_class(name: str, shape: Shape) -> str:
    if shape.vector:
        return _VECTORS
    key = name.split(".", 2)[2] if name.startswith("layers.") else name
    return _CLASSES.get(key.split(".")[0], _OTHER)


def attention_line(spec: Spec) -> str:
    """Heads and their sizes, each kind of layer once."""
    shapes: dict[str, None] = {}
    for layer in spec.layers:
        match layer.mixer:
            case Attention() as mixer:
                shapes[f"{mixer.heads} heads, {mixer.kv_heads} for keys and values, of {mixer.head_dim}"] = None
            case LatentAttention() as mixer:
                shapes[f"{mixer.heads} heads over a latent of {mixer.kv_lora_rank}"] = None
    return "; ".join(shapes)


def recurrence_line(spec: Spec) -> str:
    """The layers that keep a state of a fixed size instead of keys and values; empty where there are none."""
    shapes: Counter[str] = Counter()
    for layer in spec.layers:
        match layer.mixer:
            case DeltaNet() as mixer:
                shapes[f"delta nets, {mixer.heads} heads of {mixer.k_dim} x {mixer.v_dim}"] += 1
            case Mamba() as mixer:
                shapes[f"Mamba, {mixer.channels} channels of {mixer.state_dim}"] += 1
            case Mamba2() as mixer:
                shapes[f"Mamba-2, {mixer.heads} heads of {mixer.head_dim} x {mixer.state_dim}"] += 1
            case ShortConv() as mixer:
                shapes[f"convolutions over {mixer.kernel} tokens"] += 1
    return "; ".join(f"{count} layers of {shape}" for shape, count in shapes.items())


def experts_line(spec: Spec) -> str:
    """How many experts, how many a token, in how many layers."""
    layers = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    if not layers:
        return "none"
    shapes = dict.fromkeys(
        f"{ffn.experts.count}, {ffn.router.top_k} a token, width {ffn.experts.width}" for ffn in layers
    )
    return f"{'; '.join(shapes)}, in {len(layers)} layers"


def bank_record(bank: BankInfo) -> dict[str, object]:
    """Stable keys of one bank."""
    return {
        "codecs": {field.name: field.shape.codec for field in bank.fields if not field.shape.vector},
        "record_bytes": bank.record_bytes,
        "experts_per_layer": bank.experts_per_layer,
        "layers": len(bank.layers),
        "bytes": sum(shard.size for shard in bank.shards),
    }


def bank_line(bank: BankInfo) -> str:
    """One bank for people."""
    codecs = dict.fromkeys(field.shape.codec for field in bank.fields if not field.shape.vector)
    count = bank.experts_per_layer * len(bank.layers)
    size = sum(shard.size for shard in bank.shards)
    return f"{count} records of {format_size(bank.record_bytes)} in {'+'.join(codecs)}, {format_size(size)}"
