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
from engine.files.pulling.cost import Cost
from engine.files.pulling.pull import cost_of_path, recipe_of
from engine.files.pulling.repository import cost_of
from engine.files.pulling.target import Target
from engine.files.sources.opening import open_checkpoint
from engine.files.store import Store
from freetoken_cli.estimate import Subject
from freetoken_cli.forecast import Forecast
from freetoken_cli.output import Output
from freetoken_cli.pulling import Wanted


def planned_subject(what: str, store: Store, output: Output) -> Subject:
    """What a pull of `what` into the store would make.

    Errors: those of `find_target` and of opening its source; NotFoundError for a model whose file cannot be looked into
    before it is fetched.
    """
    target = Wanted(what).target()
    with output.waiting(f"Looking at {what}"), _planned(target, what, output) as (job, cost):
        return Subject.planned(target.name, job.spec, job.plan, Forecast.of(target, cost, store))


@contextmanager
def _planned(target: Target, what: str, output: Output) -> Iterator[tuple[Job, Cost]]:
    """The planned conversion, and what a pull takes for it."""
    recipe = recipe_of(target)
    if isinstance(target.source, HubRepo):
        with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
            repo = open_repo(target.source, Path(folder) / "downloads", output.warn, recipe)
            try:
                yield repo.job, cost_of(repo)
            finally:
                repo.close()
    elif isinstance(target.source, Path):
        checkpoint = open_checkpoint(target.source)
        try:
            job = plan_job(checkpoint, recipe)
            yield job, cost_of_path(job)
        finally:
            checkpoint.close()
    else:
        raise NotFoundError(
            f"{what} is not here yet, and can only be looked into once it is fetched.",
            f"freetoken pull {what} --dry-run states its size; pull it, then ask again.",
        )
