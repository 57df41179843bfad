"""A model that is not here yet, as an estimate sees it: planned from its headers, without a byte of its weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.base.errors import NotFoundError
from engine.files.catalogue import HubRepo
from engine.files.checkpoint import Checkpoint
from engine.files.hub.repo import open_repo
from engine.files.open_checkpoint import open_checkpoint
from engine.files.plan import plan_conversion
from engine.files.upcycle import upcycled
from freetoken_cli.estimate import Subject
from freetoken_cli.output import Output
from freetoken_cli.pulling import Wanted


def planned_subject(what: str, output: Output) -> Subject:
    """What a pull of `what` would make. Errors: those of `find_target` and of opening its source; NotFoundError for a
    model whose file cannot be looked into before it is fetched.
    """
    target = Wanted(what).target()
    with output.waiting(f"Looking at {what}"), _opened(target.source, what, output) as (checkpoint, fetch):
        upcycle = target.model.upcycle if target.model else None
        spec, plan = plan_conversion(upcycled(checkpoint, upcycle) if upcycle else checkpoint)
        return Subject.planned(target.name, spec, plan, fetch)


@contextmanager
def _opened(source: object, what: str, output: Output) -> Iterator[tuple[Checkpoint, int]]:
    """The open checkpoint, and the bytes of it that would come over the network."""
    if isinstance(source, HubRepo):
        with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
            repo = open_repo(source, Path(folder) / "downloads", output.warn)
            try:
                yield repo.checkpoint, repo.to_fetch
            finally:
                repo.close()
    elif isinstance(source, Path):
        checkpoint = open_checkpoint(source)
        try:
            yield checkpoint, 0
        finally:
            checkpoint.close()
    else:
        raise NotFoundError(
            f"{what} is not here yet, and can only be looked into once it is fetched.",
            f"freetoken pull {what} --dry-run states its size; pull it, then ask again.",
        )
