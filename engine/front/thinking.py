"""Whether a model is to think before it answers, how hard and how long: as requests say it and as templates read it."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from engine.front.asked import ThoughtBudget
from engine.front.wire import fields
from engine.front.wire.fields import Field, FieldError, described

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


_TOKENS = fields.whole(0, 2**31 - 1)
THOUGHT_BUDGETS = {name: Field(_TOKENS) for name in ("thinking_token_budget", "thinking_budget")}
"""Members that say how many tokens of reasoning an answer may have, as vLLM and as Qwen's service call them."""


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


def thought_budget(name: str, value: Any) -> ThoughtBudget:
    """The budget that the member `name` is."""
    return ThoughtBudget(_TOKENS(name, value), name)


def chosen_budget(values: Mapping[str, Any]) -> ThoughtBudget | None:
    """The budget among the `values` of a request's members, whichever of its names it has; the least of two."""
    given = [ThoughtBudget(values[name], name) for name in THOUGHT_BUDGETS if values[name] is not None]
    return min(given, key=lambda budget: budget.tokens, default=None)
