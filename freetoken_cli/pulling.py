"""Taking a model into the store: what it will cost, said before the first byte, then the work with its progress."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import DoesNotFitError
from engine.base.hardware import read_memory
from engine.base.progress import Progress, silent
from engine.base.units import format_size
from engine.files.catalogue import HubRepo, PackageFile, require_runnable
from engine.files.cost import Cost
from engine.files.open_checkpoint import open_checkpoint
from engine.files.partial import partial_folder
from engine.files.plan import plan_conversion
from engine.files.pull import is_there, pull, pull_cost
from engine.files.pull_repo import CONVERT, FETCH, FETCH_AND_CONVERT
from engine.files.space import free_space
from engine.files.store import Store
from engine.files.target import Target, find_target
from engine.text.gguf_tokenizer import write_tokenizer
from freetoken_cli.output import Output

_TITLES = {
    FETCH: "Fetching {name}",
    CONVERT: "Converting {name}",
    FETCH_AND_CONVERT: "Fetching and converting {name}",
}


@dataclass(frozen=True)
class PullPlan:
    """What a pull takes. Sizes in bytes; `fetch` is what comes over the network, `disk` what stays."""

    name: str
    source: str
    fetch: int
    disk: int
    disk_free: int
    memory_total: int
    present: bool

    @property
    def fits(self) -> bool:
        """Whether the disk has room; memory that is too small costs speed, not correctness."""
        return self.present or self.fetch + self.disk <= self.disk_free

    def sentence(self) -> str:
        """The plan for people."""
        if self.present:
            return f"{self.name} is in the store already."
        parts = [f"{self.name}:"]
        if self.fetch:
            parts.append(f"{format_size(self.fetch)} to fetch,")
        parts.append(f"{format_size(self.disk)} on disk ({format_size(self.disk_free)} free),")
        roomy = "fits in memory" if self.disk <= self.memory_total else "larger than memory: experts come from disk"
        return " ".join([*parts, roomy + "."])

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `pull --dry-run --json`."""
        return {**vars(self), "fits": self.fits}


def plan_pull(
    what: str,
    store: Store,
    name: str | None,
    force: bool = False,
    revision: str | None = None,
    file: str | None = None,
) -> PullPlan:
    """Look at the source; of a model on the Hub headers are fetched, and nothing is kept. Raises as `pull` does for a
    source that cannot be taken.
    """
    target = find_target(what, name, revision, file)
    if target.model is not None:
        require_runnable(target.model)
    present = not force and is_there(store.destination(target.name), target.source)
    cost = Cost(fetch=0, disk=0, room=0) if present else pull_cost(target)
    return PullPlan(
        name=target.name,
        source=_describe(target),
        fetch=cost.fetch,
        disk=cost.disk,
        disk_free=free_space(store.root)[1],
        memory_total=read_memory()[0],
        present=present,
    )


def _describe(target: Target) -> str:
    licence = f", {target.model.licence}" if target.model and target.model.licence else ""
    if isinstance(target.source, PackageFile):
        return f"{target.source.package} {target.source.version} (Python package index){licence}"
    if isinstance(target.source, HubRepo):
        return f"{target.source.repo} at {target.source.revision} (Hugging Face Hub){licence}"
    return str(target.source)


def converted_size(source: Path) -> int:
    """Bytes that the checkpoint at `source` takes as FTW. Raises for one that this release cannot convert."""
    checkpoint = open_checkpoint(source)
    try:
        _, plan = plan_conversion(checkpoint)
        return plan.total_bytes
    finally:
        checkpoint.close()


def pull_into_store(
    what: str,
    store: Store,
    output: Output,
    name: str | None = None,
    force: bool = False,
    revision: str | None = None,
    file: str | None = None,
) -> tuple[PullPlan, Path]:
    """State the plan, then pull; the plan and the model's folder. What is there already is left alone."""
    plan = plan_pull(what, store, name, force, revision, file)
    output.note(plan.sentence())
    if not plan.fits and not _resuming(store, plan.name):
        short = plan.fetch + plan.disk - plan.disk_free
        raise DoesNotFitError(
            f"{plan.name} needs {format_size(short)} more disk than is free at {store.root}.",
            "Free some space, or move the store: FREETOKEN_STORE=/other/disk/models",
        )
    with Phases(output, plan.name) as phases:
        if plan.fetch and not plan.present:
            phases(FETCH, 0, 0)
        folder = pull(
            what,
            store,
            write_tokenizer=write_tokenizer,
            progress=phases,
            name=name,
            revision=revision,
            file=file,
            force=force,
            note=output.note,
        )
    return plan, folder


def _resuming(store: Store, name: str) -> bool:
    """Whether an earlier attempt left something to go on from; then only what is left must fit, which `pull` checks."""
    return partial_folder(store.destination(name)).exists() or store.downloads(name).exists()


class Phases:
    """Turns the phases that a pull reports into one line or bar each. A context manager, and the callback itself."""

    def __init__(self, output: Output, name: str) -> None:
        self._output = output
        self._name = name
        self._stack = ExitStack()
        self._current = ""
        self._progress: Progress = silent

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._current:
            self._stack.close()
            self._current = phase
            self._progress = self._stack.enter_context(self._output.phase(_TITLES[phase].format(name=self._name)))
        self._progress(done, total)
