"""The addresses of a repository's pages, as a browser shows them."""

from __future__ import annotations

import re
from urllib.parse import unquote

from engine.base.errors import UsageError
from engine.files.hub.address import HubRepo, is_hub_id
from engine.files.hub.place import Place
from engine.files.hub.session import connect

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
_WITH_SCHEME = re.compile(r"https?:/+", re.IGNORECASE)
_NO_OWNERS = ("api", "blog", "collections", "datasets", "docs", "models", "papers", "spaces")
_OF_REVISION = ("tree", "blob", "resolve", "commit")
_GGUF = ".gguf"


def repo_of_page(what: str) -> HubRepo | None:
    """The repository that an address shows, with the revision and the GGUF file of it; None for what is no address.

    Raises UsageError for an address that is not one of a model.
    """
    rest = _path_on_hub(what)
    if rest is None:
        return None
    parts = [unquote(part) for part in re.split("[?#]", rest)[0].split("/") if part]
    repo, more = "/".join(parts[:2]), parts[2:]
    if not is_hub_id(repo) or parts[0] in _NO_OWNERS or (more and (more[0] not in _OF_REVISION or len(more) < 2)):
        raise _no_model(what)
    if not more:
        return HubRepo(repo)
    path = "/".join(more[2:])
    return HubRepo(repo, more[1], path if path.endswith(_GGUF) else None)


def _path_on_hub(what: str) -> str | None:
    """What follows the name of the Hub's server; None for what is no address."""
    if not _WITH_SCHEME.match(what):
        host, slash, rest = what.partition("/")
        return rest if slash and host.lower() in _HOSTS else None
    try:
        place = Place.of(what)
    except ValueError:
        raise _no_model(what) from None
    if place.host in _HOSTS:
        return place.path
    hub = connect().place
    prefix = hub.path.rstrip("/") + "/"
    if not place.is_on(hub) or not place.path.startswith(prefix):
        raise _no_model(what)
    return place.path.removeprefix(prefix)


def _no_model(what: str) -> UsageError:
    try:
        shown = Place.of(what).url  # without a password
    except ValueError:
        shown = what.rpartition("@")[2]
    return UsageError(
        f"{shown} is not the address of a model.", "Give owner/name, or the page of a model: https://huggingface.co/..."
    )
