"""Converting a checkpoint into an FTW folder: streamed, resumable, and the same bytes every time."""

from __future__ import annotations

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
from engine.files.conversion.converted import Converted, Loss, Requantised
from engine.files.conversion.destination import check_place
from engine.files.conversion.fingerprint import fingerprint
from engine.files.conversion.gather import Gather
from engine.files.conversion.job import AS_IT_IS, Job, Recipe, plan_job
from engine.files.conversion.journal import read_losses
from engine.files.conversion.origin import origin_of
from engine.files.conversion.packing import Pack, native_pack
from engine.files.conversion.partial import Partial, partial_folder
from engine.files.conversion.plan import Plan, describe
from engine.files.conversion.small_files import small_files
from engine.files.conversion.stream import Pace, stream
from engine.files.ftw.manifest import DENSE_NAME, MANIFEST_NAME, FileInfo, Manifest, write_manifest
from engine.files.sources.checkpoint import TokenizerWriter
from engine.files.sources.opening import open_checkpoint
from engine.files.sources.tokenizers import lacking_tokenizer
from engine.files.space import SMALL_FILES_BYTES, require_space, used_bytes

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
    removal: str = "",
) -> Converted:
    """Converts a folder of safetensors or a GGUF file into the FTW folder `dest`, by `recipe`.

    The source is never written to. One without a tokenizer is converted, which its notes say: it cannot be run, but
    measured. All else, and what the arguments mean, is as `convert_job` says.

    Errors: those of `open_checkpoint`, `plan_job` and `convert_job`.
    """
    check_place(source, dest)
    check_destination(dest, force)
    checkpoint = open_checkpoint(source)
    try:
        return convert_job(
            plan_job(checkpoint, recipe, without_tokenizer=True),
            dest,
            write_tokenizer=write_tokenizer,
            progress=progress,
            force=force,
            pace=pace,
            pack=pack,
            removal=removal,
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
    removal: str = "",
) -> Converted:
    """Carries out a planned conversion into the FTW folder `dest`; its checkpoint stays open.

    Bounded memory whatever the model. Killed at any moment, the same call goes on in mid-file and gives the same bytes;
    until it has finished everything is in `<dest>.partial`. The checkpoint's files are acquired in their order and
    released as soon as all that they hold is safe on disk. `write_tokenizer` turns GGUF metadata into tokenizer files,
    before any weights are read. `force` replaces an existing `dest`, and starts over where an unfinished conversion was
    begun without it. `pace` says how often the journal is brought up to date; `pack` is another packer of the same
    format. `removal` is the command that an error names to remove what is unfinished; by default that of the shell.

    Errors: those of `small_files` and of acquiring a file; CorruptFileError for impossible values; UsageError when
    `dest` is there or settings would be mixed; BusyError while another process converts; DoesNotFitError when the disk
    is too small or full.
    """
    check_destination(dest, force)
    small = small_files(job, write_tokenizer)
    origin = origin_of(job.checkpoint)
    _check_space(dest, job.plan)
    with Partial(dest, fingerprint(job), force, removal) as partial:
        check_destination(dest, force)  # again: who held the lock before us may have finished
        partial.write_small(small)
        infos = {name: FileInfo(len(content), xxhash.xxh3_128_hexdigest(content)) for name, content in small.items()}
        small.clear()  # a vocabulary takes memory, and the weights may take hours
        gather = Gather(job.checkpoint.tensors)
        stream(job.plan, gather, job.checkpoint.files, partial, progress, pack, pace or _pace(job.plan))
        result = _result(job, dest, partial.lines)
        manifest = write_manifest(_manifest(job, result, origin, partial.hashes, infos))
        partial.write_small({MANIFEST_NAME: manifest})
        sizes = {name: info.size for name, info in infos.items()}
        partial.finish({**job.plan.sizes, **sizes, MANIFEST_NAME: len(manifest)}, replace=force)
        return result


def check_destination(dest: Path, force: bool) -> None:
    """Raises UsageError when `dest` is there: a model may be replaced with `force`, anything else may not."""
    if not os.path.lexists(dest):
        return
    if not (dest / MANIFEST_NAME).is_file():
        raise UsageError(f"{dest} is there already, and is no converted model.", "Name another destination.")
    if not force:
        raise UsageError(f"{dest} is there already.", "Name another destination, or replace it with --force.")


def _pace(plan: Plan) -> Pace:
    total, _ = read_memory()
    return Pace(drop_cache=plan.total_bytes > total * _CACHED_SHARE)


def _check_space(dest: Path, plan: Plan) -> None:
    """Raises DoesNotFitError when the disk lacks room for what is still to be written."""
    there = used_bytes(partial_folder(dest))
    require_space(dest, max(0, plan.total_bytes + SMALL_FILES_BYTES - there))


def _result(job: Job, dest: Path, lines: list[str]) -> Converted:
    requantised = None
    if job.recipe.expert_codec:
        requantised = Requantised.from_loss(job.recipe.expert_codec, Loss.total(read_losses(lines)))
    return Converted(dest, job.plan.left_out, requantised, lacking_tokenizer(job.checkpoint))


def _manifest(
    job: Job, result: Converted, origin: Mapping[str, Any], hashes: list[str], files: Mapping[str, FileInfo]
) -> Manifest:
    dense, banks = describe(job.plan, hashes)
    provenance = {
        "tool": f"freetoken {__version__}",
        "source": job.checkpoint.name,
        **origin,
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
        files=files,
        provenance=provenance,
    )
