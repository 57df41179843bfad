"""What somebody means by the argument of a pull: a model of the catalogue, a repository of the Hub, or a path."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from engine.base.errors import UsageError
from engine.base.paths import typed_path
from engine.files.hub.address import HubRepo, is_hub_id
from engine.files.hub.page import repo_of_page
from engine.files.pulling.catalogue import Model, PackageFile, find_model, read_catalogue
from engine.files.sources.gguf.checkpoint import split_name

_GGUF = ".gguf"


@dataclass(frozen=True)
class Target:
    """What to pull and how the store calls it. `model` is the entry of the catalogue, None for what has none."""

    source: Path | PackageFile | HubRepo
    name: str
    model: Model | None = None


def find_target(what: str, name: str | None = None, revision: str | None = None, file: str | None = None) -> Target:
    """Reads the argument of a pull.

    A path that is there means what lies on this disk, and so does what can only be a path: one that starts with `/`,
    `.` or `~`, or ends in `.gguf`. Otherwise `owner/name`, or the address of its page, is a repository of the Hub, and
    a plain word a name of the catalogue, also where a file is called so. `./owner/name` and the page's address say
    which is meant where both exist. An address may name a revision and a GGUF file as well; `revision` and `file` go
    before it.

    Errors: NotFoundError for a name that the catalogue does not have, UsageError for an address of no model, and for a
    revision or a file of something that has none.
    """
    page = repo_of_page(what)
    if page is None and looks_like_path(what):
        _refuse_for_others(revision, file, "a path")
        path = typed_path(what)
        return Target(path, name or store_name(path))
    found = page or (HubRepo(what) if is_hub_id(what) else None)
    if found is not None:
        source = HubRepo(found.repo, revision or found.revision, file or found.file)
        return Target(source, name or _repo_name(source))
    model = find_model(read_catalogue(), what)
    if not isinstance(model.source, HubRepo):
        _refuse_for_others(revision, file, f"{what}, which is one file of a package")
        return Target(model.source, name or model.name, model)
    chosen = replace(model.source, revision=revision or model.source.revision, file=file or model.source.file)
    return Target(chosen, name or model.name, model)


def looks_like_path(what: str) -> bool:
    """Whether an argument means something on this disk rather than a name, as `find_target` says."""
    path = typed_path(what)
    if what.startswith(("/", "~", ".")) or what.endswith(_GGUF):
        return True
    if "/" in what:
        return path.exists() or not is_hub_id(what)
    return path.is_dir() or (path.is_file() and what not in read_catalogue())


def store_name(path: Path) -> str:
    """A name for a model that is known by its path: `Qwen3-30B-A3B.Q4_0.gguf` gives `qwen3-30b-a3b.q4_0`."""
    resolved = path.resolve()
    return _plain(resolved.stem if resolved.suffix == _GGUF else resolved.name, str(path))


def _repo_name(source: HubRepo) -> str:
    """The repository's name; where one of its files was chosen, that file's, which tells it from the others."""
    name = source.repo.partition("/")[2]
    if source.file is None:
        return _plain(name, source.repo)
    file = source.file.rpartition("/")[2]
    if not file.endswith(_GGUF):
        return _plain(f"{name}.{file}", source.repo)  # a piece of a name, such as Q4_K_M
    split = split_name(file)
    return _plain(split[0] if split else file.removesuffix(_GGUF), source.repo)


def _plain(text: str, where: str) -> str:
    letters = "".join(
        sign for sign in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(sign)
    )
    name = re.sub(r"[^a-z0-9._-]+", "-", letters).strip("-._")[:100]
    if not name:
        raise UsageError(f"No name can be made from {where}.", "Give it one with --name.")
    return name


def _refuse_for_others(revision: str | None, file: str | None, what: str) -> None:
    for flag, value in (("--revision", revision), ("--file", file)):
        if value is not None:
            raise UsageError(f"{flag} chooses from a repository of the Hugging Face Hub, and this is {what}.")
