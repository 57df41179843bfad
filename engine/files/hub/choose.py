"""Which files of a repository make the model that was asked for, decided by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.base.errors import NotFoundError, UnsupportedError, UsageError
from engine.base.nearest import did_you_mean
from engine.base.units import format_size
from engine.files.hub.listing import HubFile, Listing
from engine.files.sources.gguf.checkpoint import split_name, split_parts

_CONFIG = "config.json"
_GGUF, _SAFETENSORS = ".gguf", ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# GGUF files that are no model: a vision projector, and what a quantiser was guided by
_NO_MODELS = ("mmproj", "imatrix")
_SHOWN = 40


@dataclass(frozen=True)
class GgufChoice:
    """The parts of one GGUF model, in order; `name` is what they have in common, or the file's own name."""

    name: str
    parts: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(max(0, part.size) for part in self.parts)


def choose_gguf(listing: Listing, wanted: str | None) -> GgufChoice | None:
    """The GGUF model to take, or None when the repository's safetensors are to be taken.

    `wanted` is the name of a file, of any part of a split one, or a piece of a name that only one has, such as Q4_K_M.
    Errors: UsageError when there are several to choose from, NotFoundError when there is none of that name.
    """
    choices = _gguf_choices(listing)
    if wanted is None:
        if _has_safetensors(listing):
            return None
        if len(choices) > 1:
            raise UsageError(
                f"{listing.repo} holds {len(choices)} models: {_list(choices)}", "Choose one with --file NAME."
            )
        return next(iter(choices.values()), None)
    exact = _exact(choices, wanted)
    if exact is not None:
        return exact
    found = {name: choice for name, choice in choices.items() if wanted.lower() in name.lower()}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UsageError(f"{wanted!r} could be any of: {_list(found)}", "Give more of the name.")
    raise NotFoundError(
        f"{listing.repo} holds no GGUF file {wanted!r}.",
        did_you_mean(wanted, choices) or (f"It holds: {_list(choices)}" if choices else "It holds no GGUF at all."),
    )


def require_weights(listing: Listing) -> None:
    """Raises UnsupportedError for a repository without a config and safetensors, saying what it holds instead."""
    if not _has_safetensors(listing):
        pickles = sorted(file.path for file in listing.files if file.path.endswith(_PICKLES))
        if pickles:
            raise UnsupportedError(
                f"{listing.repo} holds its weights as {pickles[0]}, a format that can run code and is not read.",
                "Look for a copy of the model in safetensors or GGUF.",
            )
        raise UnsupportedError(
            f"{listing.repo} holds neither safetensors nor GGUF files.", "Look for a copy of the model that does."
        )
    if listing.find(_CONFIG) is None:
        raise UnsupportedError(
            f"{listing.repo} is not a language model that can be read: it has no {_CONFIG}.",
            "Look for the repository of the whole model.",
        )


def _has_safetensors(listing: Listing) -> bool:
    return any(file.path.endswith(_SAFETENSORS) and "/" not in file.path for file in listing.files)


def _gguf_choices(listing: Listing) -> dict[str, GgufChoice]:
    """All GGUF models by name; one of which a part is missing is not among them."""
    there = {file.path: file for file in listing.files if file.path.endswith(_GGUF)}
    found: dict[tuple[str, int], list[str]] = {}
    for path in sorted(there):
        folder, _, name = path.rpartition("/")
        if name.lower().startswith(_NO_MODELS):
            continue
        stem, count = split_name(name) or (name, 1)
        found.setdefault((f"{folder}/{stem}" if folder else stem, count), []).append(path)
    choices: dict[str, GgufChoice] = {}
    for (common, count), paths in found.items():
        if len(paths) == count:  # names claim any number of parts: none is looked for before so many are there
            folder, _, name = paths[0].rpartition("/")
            parts = [there.get(f"{folder}/{part}" if folder else part) for part in split_parts(name)]
            whole = tuple(part for part in parts if part is not None)
            if len(whole) == count:
                choices[common] = GgufChoice(common, whole)
    return choices


def _exact(choices: Mapping[str, GgufChoice], wanted: str) -> GgufChoice | None:
    """The choice that `wanted` names with or without its folder, by what its parts have in common or by one of them."""
    found = [
        choice
        for choice in choices.values()
        if wanted in (choice.name, choice.name.rpartition("/")[2], *(part.path for part in choice.parts))
        or wanted in (part.name for part in choice.parts)
    ]
    return found[0] if len(found) == 1 else None


def _list(choices: Mapping[str, GgufChoice]) -> str:
    shown = [f"{choice.name} ({format_size(choice.size)})" for choice in list(choices.values())[:_SHOWN]]
    more = [f"and {len(choices) - _SHOWN} more"] if len(choices) > _SHOWN else []
    return ", ".join(shown + more) + "."
