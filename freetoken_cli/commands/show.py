"""`freetoken show`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from engine.base.units import format_size, format_tokens
from freetoken_cli import options
from freetoken_cli.options import Folder, Json, NoColor
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken show demo", "what it is, what it needs here and how fast it should be"),
    ("freetoken show demo --json", "with the whole spec"),
)

Quiet = Annotated[bool, options.quiet("Print the name alone.")]


def command(model: Folder, json: Json = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """Show what a model is made of and where it comes from, what it needs here, and how fast it should be.

    From its manifest, the sizes of its files and the profile of this machine; nothing is loaded.
    `freetoken run MODEL --estimate` takes flags.
    """
    from engine.files.ftw.opening import open_model
    from engine.files.pulling.catalogue import read_catalogue
    from engine.files.store import Store
    from engine.spec.schema import Spec
    from freetoken_cli.anatomy import (
        attention_line,
        bank_line,
        bank_record,
        experts_line,
        recurrence_line,
        tensor_classes,
    )
    from freetoken_cli.estimate import Subject, estimate
    from freetoken_cli.folders import model_folder
    from freetoken_cli.origin import find_origin, origin_rows

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    folder = model_folder(Store(paths.store), model)
    manifest = open_model(folder).manifest
    spec = Spec.from_json(manifest.spec)
    classes = tensor_classes(manifest)
    origin = find_origin(manifest.provenance, read_catalogue())
    here = estimate(Subject.stored(folder), paths.profile, options.settings(paths))
    document = {
        "name": folder.name,
        "folder": str(folder),
        "family": spec.family,
        "layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "context": spec.context_length,
        "dense_bytes": manifest.dense_bytes,
        "expert_bytes": sum(shard.size for bank in manifest.banks for shard in bank.shards),
        "tensors": [asdict(each) for each in classes],
        "banks": [bank_record(bank) for bank in manifest.banks],
        "origin": {name: value or None for name, value in vars(origin).items()},
        "estimate": here.to_json(),
        "provenance": dict(manifest.provenance),
        "spec": dict(manifest.spec),
    }
    recurrence = recurrence_line(spec)
    rows = [
        ("name", folder.name),
        ("family", spec.family),
        ("layers", str(len(spec.layers))),
        ("hidden", str(spec.hidden_size)),
        ("attention", attention_line(spec)),
        *([("recurrence", recurrence)] if recurrence else []),
        ("experts", experts_line(spec)),
        ("vocabulary", str(spec.vocab_size)),
        ("context", f"{format_tokens(spec.context_length)} tokens"),
        *[("tensors", f"{each.name} in {each.codec}, {format_size(each.size)}") for each in classes],
        *[("bank", bank_line(bank)) for bank in manifest.banks],
        *origin_rows(origin, manifest.provenance),
        ("folder", str(folder)),
        *[row for row in here.rows() if row[0] not in ("model", "device")],
    ]
    output.facts(document, rows, name=folder.name)
