"""Which files a conversion writes, by name: what else lies in its folder is somebody else's."""

from __future__ import annotations

import re

from engine.files.ftw.manifest import DENSE_NAME, MANIFEST_NAME
from engine.files.names import COMPANION_FILES, CONFIG_NAME, JOURNAL_NAME

_FIXED = frozenset({JOURNAL_NAME, DENSE_NAME, MANIFEST_NAME, CONFIG_NAME, *COMPANION_FILES})
_NUMBERED = re.compile(r"experts-\d+-\d+\.bank|chat_template\.[A-Za-z0-9_.-]+\.jinja", re.ASCII)


def is_of_conversion(name: str) -> bool:
    """Whether a conversion writes files of that name."""
    return name in _FIXED or bool(_NUMBERED.fullmatch(name))
