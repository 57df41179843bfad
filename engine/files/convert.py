"""Converting a checkpoint into an FTW folder: streamed, resumable, and the same bytes every time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from engine import __version__
from engine.base.errors import UsageError
from engine.base.hardware import read_memory
from engine.base.progress import Progress, silent
from engine.files.checkpoint import TokenizerWriter
from engine.files.converted import Converted, Loss, Requantised
from engine.files.gather import Gather
from engine.files.job import AS_IT_IS, Job, Recipe, plan_job
from engine.files.journal import read_losses
from engine.files.manifest import DENSE_NAME, MANIFEST_NAME, FileInfo, Manifest, write_manifest
from engine.files.open_checkpoint import open_checkpoint
from engine.files.packing import Pack, native_pack
from engine.files.partial import JOURNAL_NAME, JOURNAL_VERSION, Partial, partial_folder
from engine.files.plan import Plan, describe
from engine.files.space import require_space
from engine.files.stream import Pace, stream
from engine.files.untrusted import read_small_file

CONFIG_NAME = "config.json"
GENERATION_NAME = "generation_config.json"

_SMALL_FILES_BYTES = 64 << 20  # room for the manifest, the tokenizer and what the file system adds
_CACHED_SHARE = 0.25  # an output that is larger than this share of the memory is not left in the page cache


def convert(
    source: Path,
    dest: Path,
    *,
    write_tokenizer: TokenizerWriter,
    progress: Progress = silent,
    recipe: Recipe = AS_IT_IS,
    force: bool = False,
    pace: Pace | None = None,
    pack: Pack = native_pack,
) -> Converted:
    """Converts a folder of safetensors or a GGUF file into the FTW folder `dest`, by `recipe`.

    The source is never written to. All else, and what the arguments mean, is as `convert_job` says.

    Errors: those of `open_checkpoint`, `plan_job` and `convert_job`.
    """
    check_destination(dest, force)
    checkpoint = open_checkpoint(source)
    try:
        return convert_job(
            plan_job(checkpoint, recipe),
            dest,
            write_tokenizer=write_tokenizer,
            progress=progress,
            force=force,
            pace=pace,
            pack=pack,
        )
    finally:
        checkpoint.close()


def convert_job(
    job: Job,
    dest: Path,
    *,
    write_tokenizer: TokenizerWriter,
    progress: Progress = silent,
    force: bool = False,
    pace: Pace | None = None,
    pack: Pack = native_pack,
) -> Converted:
    """Carries out a planned conversion into the FTW folder `dest`; its checkpoint stays open.

    Bounded memory whatever the model. Killed at any moment, the same call goes on in mid-file and gives the same bytes;
    until it has finished everything is in `<dest>.partial`. The checkpoint's files are acquired in their order and
    released as soon as all that they hold is safe on disk. `write_tokenizer` turns GGUF metadata into tokenizer files,
    `force` replaces an existing `dest` or an unfinished conversion of something else. `pace` says how often the journal
    is brought up to date; `pack` is another packer of the same format.

    Errors: CorruptFileError for impossible values; UsageError when `dest` is there or settings would be mixed;
    BusyError while another process converts; DoesNotFitError when the disk is too small or full; those of acquiring a
    file.
    """
    check_destination(dest, force)
    _check_space(dest, job.plan)
    with Partial(dest, _fingerprint(job), discard_other=force) as partial:
        check_destination(dest, force)  # again: who held the lock before us may have finished
        gather = Gather(job.checkpoint.tensors)
        stream(job.plan, gather, job.checkpoint.files, partial, progress, pack, pace or _pace(job.plan))
        _write_small_files(job, partial.folder, write_tokenizer)
        result = _result(job, dest, partial.lines)
        manifest = _manifest(job, result, partial)
        (partial.folder / MANIFEST_NAME).write_bytes(write_manifest(manifest))
        partial.finish(job.plan.sizes, replace=force)
        return result


def check_destination(dest: Path, force: bool) -> None:
    """Raises UsageError when `dest` is there: a model may be replaced with `force`, anything else may not."""
    if not os.path.lexists(dest):
        return
    if not (dest / MANIFEST_NAME).is_file():
        raise UsageError(f"{dest} is there already, and is no converted model.", "Name another destination.")
    if not force:
        raise UsageError(f"{dest} is there already.", "Name another destination, or replace it with --force.")


def _fingerprint(job: Job) -> dict[str, Any]:
    """What must be the same for a conversion to go on where it stopped."""
    return {
        "tool": __version__,
        "journal": JOURNAL_VERSION,
        "source": [file.identity for file in job.checkpoint.files],
        "settings": job.recipe.settings,
        "spec": xxhash.xxh3_128_hexdigest(json.dumps(job.spec.to_json(), sort_keys=True).encode()),
    }


def _pace(plan: Plan) -> Pace:
    total, _ = read_memory()
    return Pace(drop_cache=plan.total_bytes > total * _CACHED_SHARE)


def _check_space(dest: Path, plan: Plan) -> None:
    """Raises DoesNotFitError when the disk lacks room for what is still to be written."""
    partial = partial_folder(dest)
    there = sum(path.stat().st_blocks * 512 for path in partial.iterdir()) if partial.is_dir() else 0
    require_space(dest, max(0, plan.total_bytes + _SMALL_FILES_BYTES - there))


def _write_small_files(job: Job, folder: Path, write_tokenizer: TokenizerWriter) -> None:
    """The config, the tokenizer, and what else of the source is worth keeping."""
    checkpoint = job.checkpoint
    _write_json(folder / CONFIG_NAME, checkpoint.config)
    if job.recipe.sampling:
        _write_json(folder / GENERATION_NAME, job.recipe.sampling)
    for name, companion in checkpoint.companions.items():
        (folder / name).write_bytes(read_small_file(companion))
    if checkpoint.metadata is not None:
        write_tokenizer(checkpoint.metadata, folder)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _result(job: Job, dest: Path, lines: list[str]) -> Converted:
    requantised = None
    if job.recipe.expert_codec:
        requantised = Requantised.from_loss(job.recipe.expert_codec, Loss.total(read_losses(lines)))
    return Converted(dest, job.plan.left_out, requantised)


def _manifest(job: Job, result: Converted, partial: Partial) -> Manifest:
    dense, banks = describe(job.plan, partial.hashes)
    provenance = {
        "tool": f"freetoken {__version__}",
        "source": job.checkpoint.name,
        "source_files": [{"file": file.path.name, "bytes": file.size} for file in job.checkpoint.files],
        "settings": job.recipe.settings,
    }
    if result.left_out:
        provenance["left_out"] = result.left_out
    if result.requantised:
        provenance["requantised"] = asdict(result.requantised)
    return Manifest(
        spec=job.spec.to_json(),
        dense=dense,
        dense_bytes=job.plan.sizes[DENSE_NAME],
        banks=banks,
        files=_small_files(job.plan, partial.folder),
        provenance=provenance,
    )


def _small_files(plan: Plan, folder: Path) -> dict[str, FileInfo]:
    """Every file of the folder that is not planned: what was just written beside the weights."""
    others = {MANIFEST_NAME, JOURNAL_NAME, *plan.sizes}
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name not in others:
            data = read_small_file(path)
            files[path.name] = FileInfo(len(data), xxhash.xxh3_128_hexdigest(data))
    return files
