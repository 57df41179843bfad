"""What taking a model in is going to cost, said before the first byte of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.base.hardware import read_memory
from engine.base.units import format_size
from engine.files.hub.address import HubRepo
from engine.files.pulling.catalogue import PackageFile
from engine.files.pulling.cost import Cost
from engine.files.pulling.target import Target
from engine.files.space import free_space
from engine.files.store import Store

NOTHING = Cost(fetch=0, disk=0, room=0)
MORE_DISK = "Free some space, or move the store: FREETOKEN_STORE=/other/disk/models"


@dataclass(frozen=True)
class Forecast:
    """What a pull takes. Sizes in bytes: `fetch` comes over the network, `disk` stays, `room` is the most at any time.

    `here` is what an unfinished pull has on the disk already. `memory_wanted` is what the model wants of RAM so that no
    weight is read from disk twice. All costs of a model that is `present` are 0.
    """

    name: str
    source: str
    licence: str
    fetch: int
    disk: int
    room: int
    here: int
    disk_free: int
    memory_wanted: int
    memory_total: int
    present: bool

    @staticmethod
    def of(target: Target, cost: Cost, store: Store, present: bool = False) -> Forecast:
        """The forecast for a target that costs `cost`."""
        model = target.model
        return Forecast(
            name=target.name,
            source=_source(target),
            licence=model.licence if model else "",
            fetch=cost.fetch,
            disk=cost.disk,
            room=cost.room,
            here=store.unfinished_bytes(target.name),
            disk_free=free_space(store.root)[1],
            memory_wanted=(model.memory if model else 0) or cost.disk,
            memory_total=read_memory()[0],
            present=present,
        )

    @property
    def short(self) -> int:
        """Bytes of disk that are missing."""
        return 0 if self.present else max(0, self.room - self.here - self.disk_free)

    @property
    def fits(self) -> bool:
        """Whether the disk has room; memory that is too small costs speed, not correctness."""
        return not self.short

    def shortage(self) -> str:
        """What is missing, for people."""
        return f"{format_size(self.short)} of disk too little"

    def sentence(self) -> str:
        """The forecast for people."""
        if self.present:
            return f"{self.name} is in the store already."
        fetch = f"{format_size(self.fetch)} to fetch, " if self.fetch else ""
        disk = f"{format_size(self.disk)} on disk ({format_size(self.disk_free)} free)"
        memory = f"{format_size(self.memory_wanted)} of memory ({format_size(self.memory_total)} here)"
        licence = f" Licence: {self.licence}." if self.licence else ""
        return f"{self.name}: {fetch}{disk}, {memory}: {self._verdict()}.{licence}"

    def _verdict(self) -> str:
        if self.short:
            return f"does not fit, {self.shortage()}"
        return (
            "fits in memory"
            if self.memory_wanted <= self.memory_total
            else "larger than memory, so experts come from disk"
        )

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `pull --dry-run --json`."""
        return {**vars(self), "licence": self.licence or None, "fits": self.fits, "short": self.short}


def _source(target: Target) -> str:
    if isinstance(target.source, PackageFile):
        return f"{target.source.package} {target.source.version} (Python package index)"
    if isinstance(target.source, HubRepo):
        file = f"/{target.source.file}" if target.source.file else ""
        return f"{target.source.repo}{file} at {target.source.revision} (Hugging Face Hub)"
    return str(target.source)
