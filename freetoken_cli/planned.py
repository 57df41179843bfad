"""A model that is not here yet, as an estimate sees it: planned from its headers, without a byte of its weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.base.errors import NotFoundError
from engine.files.conversion.job import Job, plan_job
from engine.files.hub.address import HubRepo
from engine.files.hub.repo import open_repo
from engine.files.pulling.pull import recipe_of
from engine.files.pulling.target import Target
from engine.files.sources.opening import open_checkpoint
from freetoken_cli.estimate import Subject
from freetoken_cli.output import Output
from freetoken_cli.pulling import Wanted


def planned_subject(what: str, output: Output) -> Subject:
    """What a pull of `what` would make. Errors: those of `find_target` and of opening its source; NotFoundError for a
    model whose file cannot be looked into before it is fetched.
    """
    target = Wanted(what).target()
    with output.waiting(f"Looking at {what}"), _planned(target, what, output) as (job, fetch):
        return Subject.planned(target.name, job.spec, job.plan, fetch)


@contextmanager
def _planned(target: Target, what: str, output: Output) -> Iterator[tuple[Job, int]]:
    """The planned conversion, and the bytes of its source that would come over the network."""
    recipe = recipe_of(target)
    if isinstance(target.source, HubRepo):
        with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
            repo = open_repo(target.source, Path(folder) / "downloads", output.warn, recipe)
            try:
                yield repo.job, repo.to_fetch
            finally:
                repo.close()
    elif isinstance(target.source, Path):
        checkpoint = open_checkpoint(target.source)
        try:
            yield plan_job(checkpoint, recipe), 0
        finally:
            checkpoint.close()
    else:
        raise NotFoundError(
            f"{what} is not here yet, and can only be looked into once it is fetched.",
            f"freetoken pull {what} --dry-run states its size; pull it, then ask again.",
        )
