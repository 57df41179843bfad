"""Whether a model is to think before it answers, and how hard: as requests say it and as templates read it."""

from __future__ import annotations

from reprlib import repr as shown
from typing import Any

from engine.front.fields import FieldError, described

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@described({"enum": list(EFFORTS)})
def effort(name: str, value: Any) -> str:
    """How hard a model should think; `none`: not at all."""
    if not isinstance(value, str) or value not in EFFORTS:
        raise FieldError(name, f"one of {', '.join(EFFORTS)} is expected, not {shown(value)}.")
    return value


def variables_of_effort(chosen: str | None) -> dict[str, Any]:
    """The variables of a template for an effort; none where a request does not say."""
    if chosen is None:
        return {}
    return thinking_variables(False) if chosen == "none" else thinking_variables(True, chosen)


def thinking_variables(thinks: bool, chosen: str | None = None) -> dict[str, Any]:
    """The variables by which templates are told, each under the names that some of them read."""
    return {"enable_thinking": thinks, "thinking": thinks, **({} if chosen is None else {"reasoning_effort": chosen})}
