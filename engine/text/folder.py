"""What the text files of a checkpoint folder say: names of special tokens, added tokens, chat templates, ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.untrusted import read_object

STANDARD_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in raw text before the model of the tokenizer runs. Flags as in tokenizer.json."""

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


@dataclass(frozen=True)
class TextFiles:
    """The text part of a checkpoint, read and checked but not yet interpreted."""

    tokenizer: Path
    """tokenizer.json"""
    named_tokens: Mapping[str, str]
    """`bos_token` -> `<s>` and so on: what a template sees as variables."""
    extra_special: tuple[str, ...]
    """Special tokens that have no name of their own."""
    added_tokens: Mapping[int, AddedToken]
    """Tokens that tokenizer_config.json adds to those of tokenizer.json, by id."""
    templates: Mapping[str, str]
    """Chat templates by name; a single one is called `default`. Empty when the checkpoint has none."""
    eos_ids: tuple[int, ...]
    """End tokens that generation_config.json and config.json give as numbers."""


def read_text_files(folder: Path) -> TextFiles:
    """Reads the text files of `folder`.

    Raises NotFoundError without a tokenizer.json, CorruptFileError (with the file's name) for one that is not what
    its name promises.
    """
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise NotFoundError(
            f"{folder} has no tokenizer.json, so its token ids cannot be turned into text.",
            "Take a checkpoint that includes tokenizer.json, or convert it again from its source.",
        )
    config_file = folder / "tokenizer_config.json"
    config = read_optional(config_file)
    named, extra = _special_tokens(config, config_file)
    added = _added_tokens(config, config_file)
    if not added:  # an older layout keeps the names in a file of their own
        map_file = folder / "special_tokens_map.json"
        older, older_extra = _special_tokens(read_optional(map_file), map_file)
        named = {**named, **older}
        extra = tuple(dict.fromkeys(extra + older_extra))
    return TextFiles(
        tokenizer=tokenizer,
        named_tokens=named,
        extra_special=extra,
        added_tokens=added,
        templates=_templates(folder, config, config_file),
        eos_ids=tuple(dict.fromkeys(_eos_ids(folder))),
    )


def read_optional(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; an absent file is an empty one."""
    try:
        return read_object(path)
    except NotFoundError:
        return {}
    except CorruptFileError as error:
        raise CorruptFileError(error.message, "Fetch the file again.") from None


def _text_of(value: object) -> str | None:
    """A token as a file writes it: its text, or an object with its text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _special_tokens(config: Mapping[str, Any], path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Named special tokens, and those without a name (`additional_special_tokens`, now `extra_special_tokens`)."""
    named: dict[str, str] = {}
    for key, value in config.items():
        if not key.endswith("_token") or isinstance(value, bool):
            continue
        text = _text_of(value)
        if text is not None:
            named[key] = text
        elif value is not None and key in STANDARD_NAMES:
            raise CorruptFileError(f"{path} gives {value!r} as {key}.", "Fetch the file again.")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):  # names of the model's own, e.g. {"image_token": "<image>"}
        named.update({key: text for key, value in extra.items() if (text := _text_of(value)) is not None})
        return named, ()
    if not isinstance(extra, list):
        raise CorruptFileError(f"{path} gives {extra!r} as special tokens.", "Fetch the file again.")
    return named, tuple(text for value in extra if (text := _text_of(value)) is not None)


def _added_tokens(config: Mapping[str, Any], path: Path) -> dict[int, AddedToken]:
    table = config.get("added_tokens_decoder") or {}
    tokens: dict[int, AddedToken] = {}
    try:
        for key, entry in table.items():
            content, special = entry["content"], bool(entry.get("special", False))
            if not isinstance(content, str):
                raise TypeError(f"token {key} is {content!r}")
            tokens[int(key)] = AddedToken(
                content=content,
                special=special,
                single_word=bool(entry.get("single_word", False)),
                lstrip=bool(entry.get("lstrip", False)),
                rstrip=bool(entry.get("rstrip", False)),
                normalized=bool(entry.get("normalized", not special)),
            )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"{path} has an added_tokens_decoder that cannot be read: {error}.", "Fetch the file again."
        ) from error
    return dict(sorted(tokens.items()))


def _templates(folder: Path, config: Mapping[str, Any], config_file: Path) -> dict[str, str]:
    """Chat templates by name. Files of their own win over tokenizer_config.json, as they do in transformers."""
    files = {}
    single = folder / "chat_template.jinja"
    if single.is_file():
        files["default"] = single
    files.update({path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))})
    for path in sorted(folder.glob("chat_template.*.jinja")):  # the same in a converted model, whose folder is flat
        files[path.stem.removeprefix("chat_template.")] = path
    if files:
        return {name: _read_template(path) for name, path in files.items()}
    template = config.get("chat_template")
    if template is None:
        config_file = folder / "chat_template.json"
        template = read_optional(config_file).get("chat_template")
    if template is None:
        return {}
    if isinstance(template, str):
        return {"default": template}
    named = list(template.items()) if isinstance(template, dict) else list(_named_templates(template))
    if not named or not all(isinstance(name, str) and isinstance(text, str) for name, text in named):
        raise CorruptFileError(f"{config_file} has a chat_template of unknown form.", "Fetch the file again.")
    return dict(named)


def _named_templates(template: object) -> Iterator[tuple[object, object]]:
    """The older form of several templates: a list of `{"name": ..., "template": ...}`."""
    for entry in template if isinstance(template, list) else [None]:
        yield (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not UTF-8 text: {error}.", "Fetch the file again.") from error


def _eos_ids(folder: Path) -> Iterator[int]:
    """End tokens from generation_config.json and config.json: a number, a list, or inside `text_config`."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        config = read_optional(path)
        nested = config.get("text_config")
        for holder in (config, nested if isinstance(nested, dict) else {}):
            yield from _ids(holder.get("eos_token_id"), path)


def _ids(value: object, path: Path) -> Iterator[int]:
    for entry in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
            raise CorruptFileError(f"{path} gives {entry!r} as eos_token_id.", "Fetch the file again.")
        yield entry
