"""What `freetoken doctor` says about one checkpoint: what it is, what it needs, and what this release lacks for it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import FreetokenError, NotFoundError
from engine.base.hardware import read_memory
from engine.base.paths import Paths, typed_path
from engine.base.units import format_size, format_tokens
from engine.files.codecs import FORMS
from engine.files.conversion.gather import VECTOR_FORMS
from engine.files.conversion.plan import Plan, plan_conversion
from engine.files.hub.address import HubRepo
from engine.files.hub.repo import open_repo
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.opening import open_checkpoint
from engine.files.space import free_space
from engine.program.lowering.lower import lower
from engine.spec.families.survey import Survey, survey
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from freetoken_cli.checks import FAIL, NOTE, OK, Finding
from freetoken_cli.output import Output
from freetoken_cli.pulling import Wanted

SHOWN = 6  # patterns and fields named in a sentence; --json has all
REPORT_IT = "Take another checkpoint of the model, or see docs/add-a-family.md for what a release needs to know."


@dataclass(frozen=True)
class Sizes:
    """Bytes after conversion, every weight in its published codec, and the number of experts.

    `token_bytes` are those of a token of context, `state_bytes` those of a sequence however long.
    """

    total_bytes: int
    dense_bytes: int
    bank_bytes: int
    experts: int
    token_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class Examination:
    """All that was found of a checkpoint. What could not be found out is empty, or None."""

    findings: tuple[Finding, ...]
    seen: Survey | None = None
    codecs: Mapping[str, int] | None = None
    sizes: Sizes | None = None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        document: dict[str, Any] = {"checks": [asdict(finding) for finding in self.findings]}
        if self.seen is not None:
            spec = self.seen.spec
            document["checkpoint"] = {
                "family": self.seen.family or None,
                "known": self.seen.known,
                "explained": round(self.seen.explained, 4),
                "parts": _parts(spec) if spec else [],
                "operations": sorted({op.kind for op in lower(spec).ops}) if spec else [],
                "codecs": dict(self.codecs or {}),
                "sizes": asdict(self.sizes) if self.sizes else None,
                "unread": list(self.seen.unread),
                "missing": dict(self.seen.missing),
                "unexplained": dict(self.seen.unexplained),
            }
        return document


def examine(source: str, paths: Paths, output: Output) -> Examination:
    """Look at a folder, a GGUF file or a model of the Hub, of which headers alone are fetched.

    Raises NotFoundError if nothing is there, and what reaching the Hub raises.
    """
    path = typed_path(source)
    if not path.exists():
        target = Wanted(source).target()
        if isinstance(target.source, HubRepo):
            return _examine_repo(target.source, paths, output)
        path = target.source if isinstance(target.source, Path) else path
    try:
        checkpoint = open_checkpoint(path)
    except NotFoundError:
        raise
    except FreetokenError as error:
        return Examination((Finding("files", FAIL, error.message, error.remedy),))
    try:
        return examine_checkpoint(checkpoint, paths)
    finally:
        checkpoint.close()


def _examine_repo(source: HubRepo, paths: Paths, output: Output) -> Examination:
    with tempfile.TemporaryDirectory(prefix="freetoken-") as folder, output.waiting(f"Looking at {source.repo}"):
        try:
            repo = open_repo(source, Path(folder) / "downloads", output.warn)
        except FreetokenError as error:
            if error.exit_code != FreetokenError.exit_code:  # nothing there, no network: not the checkpoint's fault
                raise
            return Examination((Finding("family", FAIL, error.message, error.remedy),))
        try:
            return examine_checkpoint(repo.job.checkpoint, paths)
        finally:
            repo.close()


def examine_checkpoint(checkpoint: Checkpoint, paths: Paths) -> Examination:
    """Whether an open checkpoint can be converted and run here, and what stands against it."""
    tensors = {name: (tensor.form, tensor.shape) for name, tensor in checkpoint.tensors.items()}
    seen = survey(checkpoint.config, tensors)
    codecs = _codecs(checkpoint)
    findings = [*_files(checkpoint, codecs), _family(seen)]
    if seen.spec is not None:
        findings += _needs(seen.spec)
    findings += _fields(seen)
    findings += _tensors(seen)
    sizes = None
    if all(finding.status != FAIL for finding in findings):
        try:
            spec, plan = plan_conversion(checkpoint)
            sizes = _sizes(spec, plan)
            findings += [_told(sizes), *_room(plan, paths)]
        except FreetokenError as error:
            findings.append(Finding("conversion", FAIL, error.message, error.remedy))
    return Examination(tuple(findings), seen, codecs, sizes)


def _codecs(checkpoint: Checkpoint) -> Counter[str]:
    """Tensors by the codec that they are going to have, or by the form that cannot be read."""
    found: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        found[FORMS[tensor.form].codec if tensor.form in FORMS else tensor.form] += 1
    return found


def _files(checkpoint: Checkpoint, codecs: Counter[str]) -> Iterator[Finding]:
    count, size = len(checkpoint.files), sum(file.size for file in checkpoint.files)
    yield Finding("files", OK, f"{count} file{'s' if count != 1 else ''}, {format_size(size)}")
    known = {*FORMS, *VECTOR_FORMS}
    unknown = sorted({tensor.form for tensor in checkpoint.tensors.values() if tensor.form not in known})
    if unknown:
        detail = f"{', '.join(unknown)} cannot be read by this release"
        yield Finding("codecs", FAIL, detail, "Get it in another codec; docs/checkpoints.md lists them.")
    else:
        yield Finding("codecs", OK, ", ".join(f"{count} {codec}" for codec, count in codecs.most_common()) + " tensors")


def _family(seen: Survey) -> Finding:
    if seen.known and seen.spec is not None:
        return Finding("family", OK, describe_spec(seen.spec))
    message = seen.problem.message if seen.problem else ""
    remedy = seen.problem.remedy if seen.problem else ""
    if not seen.known and seen.family:
        message += f" Of its tensors {seen.explained:.0%} have the names of {seen.family}, the nearest family."
        remedy = f"docs/add-a-family.md tells how a family is added; begin with the record of {seen.family}."
    return Finding("family", FAIL, message, remedy)


def describe_spec(spec: Spec) -> str:
    """One line about a model: family, layers, experts, context."""
    words = [spec.family, f"{len(spec.layers)} layers", f"hidden {spec.hidden_size}"]
    kinds = {
        (ffn.experts.count, ffn.router.top_k) for ffn in (layer.ffn for layer in spec.layers) if isinstance(ffn, Moe)
    }
    words += [f"{count} experts, {top} a token" for count, top in sorted(kinds)]
    return ", ".join([*words, f"context {format_tokens(spec.context_length)}"])


def _parts(spec: Spec) -> list[str]:
    """Kinds of mixers and feed-forward parts, in order of appearance."""
    return list(dict.fromkeys(part.kind for layer in spec.layers for part in (layer.mixer, layer.ffn) if part))


def _needs(spec: Spec) -> Iterator[Finding]:
    yield Finding("needs", OK, f"{', '.join(_parts(spec))}; {len({op.kind for op in lower(spec).ops})} operations")


def _fields(seen: Survey) -> Iterator[Finding]:
    if seen.unread:
        detail = f"of config.json {seen.family} does not read {_some(seen.unread)}"
        yield Finding("fields", NOTE, detail, "If one of them changes what the model computes, answers may be wrong.")


def _tensors(seen: Survey) -> Iterator[Finding]:
    if seen.spec is not None and seen.problem is not None:
        yield Finding("tensors", FAIL, seen.problem.message, seen.problem.remedy)
    for found, what in ((seen.missing, "are missing"), (seen.unexplained, "are explained by no rule")):
        if found:
            count = sum(found.values())
            patterns = _some([f"{number} x {pattern}" for pattern, number in found.items()])
            remedy = "Fetch it again, or check that no shard is absent." if found is seen.missing else REPORT_IT
            yield Finding("tensors", FAIL, f"{count} tensors {what}: {patterns}", remedy)


def _some(items: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more


def _sizes(spec: Spec, plan: Plan) -> Sizes:
    banks = [(bank.experts_per_layer * len(bank.layers), bank.record_bytes) for bank in plan.banks]
    in_banks = sum(count * size for count, size in banks)
    program = lower(spec)
    return Sizes(
        total_bytes=plan.total_bytes,
        dense_bytes=plan.total_bytes - in_banks,
        bank_bytes=in_banks,
        experts=sum(count for count, _ in banks),
        token_bytes=program.kv_bytes_per_token + program.window_bytes_per_token,
        state_bytes=program.state_bytes,
    )


def _told(sizes: Sizes) -> Finding:
    words = [f"{format_size(sizes.total_bytes)} as FTW: {format_size(sizes.dense_bytes)} dense"]
    if sizes.experts:
        words.append(f"{format_size(sizes.bank_bytes)} in {sizes.experts} experts")
    words.append(f"{format_size(sizes.token_bytes)} a token of context")
    if sizes.state_bytes:
        words.append(f"{format_size(sizes.state_bytes)} of state")
    return Finding("sizes", OK, ", ".join(words))


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
