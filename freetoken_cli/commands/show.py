"""`freetoken show`."""

from __future__ import annotations

from typing import Annotated

from engine.base.units import format_size, format_tokens
from engine.files.ftw import load_manifest
from engine.files.manifest import BankInfo
from engine.files.store import Store
from engine.spec.schema import Attention, LatentAttention, Moe, Spec
from freetoken_cli import options
from freetoken_cli.folders import model_folder
from freetoken_cli.options import Folder, Json, NoColor
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken show demo", "family, layers, experts, codecs, sizes"),
    ("freetoken show demo --json", "with the whole spec"),
)

Quiet = Annotated[bool, options.quiet("Print the name alone.")]


def command(model: Folder, json: Json = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """Show what a model is made of, from its manifest alone."""
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    folder = model_folder(Store(options.paths().store), model)
    manifest = load_manifest(folder)
    spec = Spec.from_json(manifest.spec)
    bank_bytes = sum(shard.size for bank in manifest.banks for shard in bank.shards)
    document = {
        "name": folder.name,
        "folder": str(folder),
        "family": spec.family,
        "layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "context": spec.context_length,
        "dense_bytes": manifest.dense_bytes,
        "expert_bytes": bank_bytes,
        "banks": [_bank(bank) for bank in manifest.banks],
        "provenance": dict(manifest.provenance),
        "spec": dict(manifest.spec),
    }
    rows = [
        ("name", folder.name),
        ("family", spec.family),
        ("layers", str(len(spec.layers))),
        ("hidden", str(spec.hidden_size)),
        ("attention", _attention(spec)),
        ("experts", _experts(spec)),
        ("vocabulary", str(spec.vocab_size)),
        ("context", f"{format_tokens(spec.context_length)} tokens"),
        ("dense", format_size(manifest.dense_bytes)),
        *[("bank", _bank_line(bank)) for bank in manifest.banks],
        ("folder", str(folder)),
    ]
    output.facts(document, rows, name=folder.name)


def _attention(spec: Spec) -> str:
    shapes: dict[str, None] = {}
    for layer in spec.layers:
        match layer.mixer:
            case Attention() as mixer:
                shapes[f"{mixer.heads} heads, {mixer.kv_heads} for keys and values, of {mixer.head_dim}"] = None
            case LatentAttention() as mixer:
                shapes[f"{mixer.heads} heads over a latent of {mixer.kv_lora_rank}"] = None
    return "; ".join(shapes)


def _experts(spec: Spec) -> str:
    layers = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    if not layers:
        return "none"
    shapes = dict.fromkeys(
        f"{ffn.experts.count}, {ffn.router.top_k} a token, width {ffn.experts.width}" for ffn in layers
    )
    return f"{'; '.join(shapes)}, in {len(layers)} layers"


def _bank(bank: BankInfo) -> dict[str, object]:
    return {
        "codecs": {field.name: field.shape.codec for field in bank.fields if not field.shape.vector},
        "record_bytes": bank.record_bytes,
        "experts_per_layer": bank.experts_per_layer,
        "layers": len(bank.layers),
        "bytes": sum(shard.size for shard in bank.shards),
    }


def _bank_line(bank: BankInfo) -> str:
    codecs = dict.fromkeys(field.shape.codec for field in bank.fields if not field.shape.vector)
    count = bank.experts_per_layer * len(bank.layers)
    size = sum(shard.size for shard in bank.shards)
    return f"{count} records of {format_size(bank.record_bytes)} in {'+'.join(codecs)}, {format_size(size)}"
