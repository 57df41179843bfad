"""What one rendering of a chat template may cost."""

from __future__ import annotations

import time

from jinja2.exceptions import TemplateError

_CHARACTERS_PER_ITEM = 16  # what an item of a list weighs


class BudgetExceededError(TemplateError):
    """The template took more time, steps or memory than any honest one needs."""


class Budget:
    """What one rendering may cost: turns of loops and macros, characters built and written, seconds."""

    def __init__(self, steps: int = 1_000_000, characters: int = 1 << 26, seconds: float = 5.0) -> None:
        self._steps_left = steps
        self._characters_left = characters
        self._deadline = time.monotonic() + seconds

    def step(self, characters: int) -> None:
        """Books one turn that writes `characters`."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise BudgetExceededError("it runs for too many steps")
        if time.monotonic() > self._deadline:
            raise BudgetExceededError("it takes too long")
        self.build(characters)

    def build(self, characters: int) -> None:
        """Books a text of `characters`; call it before a text that may be huge is made."""
        self._characters_left -= characters
        if self._characters_left < 0:
            raise BudgetExceededError("it builds too much text")

    def build_value(self, value: object, times: int = 1) -> None:
        """Books `times` copies of a text or a list; other values are small."""
        if isinstance(value, str):
            self.build(len(value) * times)
        elif isinstance(value, list | tuple):
            self.build(_CHARACTERS_PER_ITEM * len(value) * times)
