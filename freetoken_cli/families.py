"""What `freetoken doctor` says about model families, and about one checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from engine.base.errors import FreetokenError
from engine.base.hardware import read_memory
from engine.base.paths import Paths
from engine.base.units import format_size, format_tokens
from engine.files.codecs import FORMS
from engine.files.conversion.plan import Plan, plan_conversion
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.opening import open_checkpoint
from engine.files.space import free_space
from engine.spec.families import FAMILIES
from engine.spec.schema import Moe, Spec
from freetoken_cli.checks import FAIL, NOTE, OK, Finding

TESTED = "logits after every layer against transformers, on tiny random checkpoints"


def family_records() -> list[dict[str, Any]]:
    """One entry a family, in a stable order."""
    return [
        {
            "name": family.name,
            "architecture": family.architecture,
            "experts": family.moe is not None,
            "codecs": list(family.tested),
            "tested": TESTED if family.tested else "not yet",
        }
        for family in sorted(FAMILIES.values(), key=lambda family: family.name)
    ]


def examine(source: Path, paths: Paths) -> list[Finding]:
    """Whether the checkpoint at `source` can be converted and run here. Raises NotFoundError if nothing is there."""
    if not source.exists():
        open_checkpoint(source)
    try:
        checkpoint = open_checkpoint(source)
    except FreetokenError as error:
        return [Finding("files", FAIL, error.message, error.remedy)]
    try:
        return [*_files(checkpoint), *_model(checkpoint, paths)]
    finally:
        checkpoint.close()


def _files(checkpoint: Checkpoint) -> list[Finding]:
    size = sum(file.size for file in checkpoint.files)
    forms = Counter(tensor.form for tensor in checkpoint.tensors.values())
    unknown = sorted(form for form in forms if form not in FORMS)
    codecs: Counter[str] = Counter()
    for form, count in forms.items():
        codecs[FORMS[form].codec if form in FORMS else form] += count
    files = f"{len(checkpoint.files)} file{'s' if len(checkpoint.files) != 1 else ''}"
    counts = ", ".join(f"{count} {codec}" for codec, count in codecs.most_common())
    return [
        Finding("files", OK, f"{files}, {format_size(size)}"),
        Finding("codecs", FAIL, f"{', '.join(unknown)} cannot be read by this release", "Get it in another codec.")
        if unknown
        else Finding("codecs", OK, f"{counts} tensors"),
    ]


def _model(checkpoint: Checkpoint, paths: Paths) -> list[Finding]:
    try:
        spec, plan = plan_conversion(checkpoint)
    except FreetokenError as error:
        return [Finding("family", FAIL, error.message, error.remedy)]
    return [Finding("family", OK, describe_spec(spec)), *_room(plan, paths)]


def describe_spec(spec: Spec) -> str:
    """One line about a model: family, layers, experts, context."""
    words = [spec.family, f"{len(spec.layers)} layers", f"hidden {spec.hidden_size}"]
    kinds = {
        (ffn.experts.count, ffn.router.top_k) for ffn in (layer.ffn for layer in spec.layers) if isinstance(ffn, Moe)
    }
    words += [f"{count} experts, {top} a token" for count, top in sorted(kinds)]
    return ", ".join([*words, f"context {format_tokens(spec.context_length)}"])


def _room(plan: Plan, paths: Paths) -> list[Finding]:
    (folder, free), (total, available) = free_space(paths.store), read_memory()
    findings = []
    if plan.total_bytes > free:
        detail = f"{format_size(plan.total_bytes)} as FTW, {format_size(plan.total_bytes - free)} more than is free"
        findings.append(Finding("disk", FAIL, detail, f"Free some space at {folder}, or move the store."))
    else:
        findings.append(Finding("disk", OK, f"{format_size(plan.total_bytes)} as FTW, {format_size(free)} free"))
    if plan.total_bytes > total:
        detail = (
            f"{format_size(plan.total_bytes)} of weights and {format_size(total)} of memory: experts come from disk"
        )
        findings.append(Finding("memory", NOTE, detail, "It runs, at the speed of the disk."))
    else:
        findings.append(
            Finding("memory", OK, f"{format_size(plan.total_bytes)} of weights, {format_size(available)} free")
        )
    return findings
