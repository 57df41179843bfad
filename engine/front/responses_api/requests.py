"""Requests for responses, made into what any chat is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from engine.base.sampling import PARAMETERS
from engine.front.asked import ChatAsked, values_of
from engine.front.forms.answer_forms import response_format
from engine.front.forms.tools import GivenTool, Offer, ToolUse, allowed_tools, read_tools, tool_use, with_names_of_tools
from engine.front.responses_api.items import Items, given_items, kept, messages_of
from engine.front.responses_api.reasoning import SUMMARIES
from engine.front.thinking import THOUGHT_BUDGETS, chosen_budget, effort, variables_of_effort
from engine.front.wire import fields
from engine.front.wire.fields import Field, FieldError, described


@described({"type": "array", "items": {"type": "string"}})
def _included(name: str, value: Any) -> tuple[Any, ...]:
    """What a response is to hold beside the usual; what this server does not know of it changes nothing."""
    if not isinstance(value, list):
        raise FieldError(name, "a list is expected.")
    fields.check_count(name, value)
    return tuple(value)


_PARAMETERS = ("temperature", "top_p", "top_k", "min_p", "seed")
RESPONSE = {
    "model": Field(fields.model, required=True),
    "stream": Field(fields.flag, False),
    "store": Field(fields.flag, True),
    "max_output_tokens": Field(fields.whole(1, 2**31 - 1)),
    "parallel_tool_calls": Field(fields.flag, True),
    "include": Field(_included, ()),
    "reasoning": Field(fields.mapping, {}),
    "text": Field(fields.mapping, {}),
    "tools": Field(fields.mappings, ()),
    "tool_choice": Field(lambda _name, value: value, "auto"),
    **THOUGHT_BUDGETS,
    "instructions": Field(fields.text, ""),
    "previous_response_id": Field(fields.text),
    "conversation": Field(fields.only()),
    "prompt": Field(fields.only()),
    **{name: Field(fields.within(PARAMETERS[name].range)) for name in _PARAMETERS},
}
_MOST_ITEMS = 100


@described({"type": "integer", "minimum": 1, "maximum": _MOST_ITEMS})
def _limit(name: str, value: str) -> int:
    """The length of a page, as a query has it."""
    if not (value.isascii() and value.isdigit() and len(value) < 4 and 1 <= int(value) <= _MOST_ITEMS):
        raise FieldError(name, f"a number from 1 to {_MOST_ITEMS} is expected, not {shown(value)}.")
    return int(value)


PAGE = {"limit": Field(_limit, 20), "order": Field(fields.one_of("asc", "desc"), "desc"), "after": Field(fields.text)}
"""What the query of a list of items says."""
_TOOLS = {"function": ("name", "description", "parameters", "strict"), "custom": ("name", "description", "format")}
_REASONING = "reasoning.encrypted_content"


@dataclass(frozen=True)
class ResponseAsked(ChatAsked):
    """A request for a response.

    `items` are all that the response is made from, but for the instructions, which are not kept. A response that
    `summarises` shows its reasoning as a summary, and one that `carries` it has clients bring it back.
    """

    items: Items = ()
    store: bool = True
    summarises: bool = False
    carries: bool = False
    echoed: Mapping[str, Any] | None = None


def previous_id(body: Mapping[str, Any]) -> str | None:
    """The id of the response that a request goes on from."""
    found: str | None = RESPONSE["previous_response_id"].value("previous_response_id", body)
    return found


def read_response(body: Mapping[str, Any], before: Items = ()) -> ResponseAsked:
    """The request in `body`, which goes on from the items `before`. FieldError for what cannot be served."""
    values = {name: field.value(name, body) for name, field in RESPONSE.items()}
    wished = values["text"].get("format")
    form = response_format("text.format", {} if wished is None else wished)
    given = given_items(body.get("input"))
    said = messages_of(given)
    if not said:
        raise FieldError("input", "none of the items says anything.")
    instructions = ({"role": "system", "content": values["instructions"]},) if values["instructions"] else ()
    offer, other_tools = _tools(values["tools"])
    known = (*RESPONSE, "input")
    not_included = (f"include[{index}]" for index, each in enumerate(values["include"]) if each != _REASONING)
    return ResponseAsked(
        model=values["model"],
        stream=values["stream"],
        include_usage=True,
        choices=1,
        max_tokens=values["max_output_tokens"],
        stops=(),
        ignore_eos=False,
        logprobs=-1,
        values=values_of(**{name: values[name] for name in _PARAMETERS}),
        messages=with_names_of_tools((*instructions, *messages_of(before), *said)),
        template_values=_thinking(values["reasoning"]),
        tools=_tool_use(offer, values),
        grammar=form.grammar,
        budget=chosen_budget(values),
        items=kept(given, before),
        store=values["store"],
        summarises=_summary(values["reasoning"]) is not None,
        carries=_REASONING in values["include"] or not values["store"],
        echoed=_echoed(values, body),
        ignored=(
            *(fields.shortened(name) for name in body if name not in known),
            *not_included,
            *form.partly,
            *other_tools,
        ),
    )


def _tools(given: Sequence[Mapping[str, Any]]) -> tuple[Offer, tuple[str, ...]]:
    """Tools as any chat has them; and those that change nothing, such as those that only the service could run."""
    told: list[GivenTool] = []
    ignored: list[str] = []
    for index, tool in enumerate(given):
        kind, place = tool.get("type"), f"tools[{index}]"
        if isinstance(kind, str) and kind in _TOOLS:
            told.append(GivenTool(kind, {key: tool.get(key) for key in _TOOLS[kind]}, place))
        else:
            ignored.append(place)
    return read_tools("tools", told), tuple(ignored)


def _tool_use(offer: Offer, values: Mapping[str, Any]) -> ToolUse:
    choice, parallel = values["tool_choice"], values["parallel_tool_calls"]
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return tool_use(offer, choice, parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return tool_use(offer, allowed_tools("tool_choice", choice), parallel)
    if isinstance(choice, dict) and choice.get("type") in (*_TOOLS,):
        return tool_use(offer, {"name": fields.text("tool_choice.name", choice.get("name"))}, parallel)
    raise FieldError("tool_choice", f"none, auto, required or a tool is expected, not {shown(choice)}.")


def _thinking(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    chosen = reasoning.get("effort")
    return variables_of_effort(None if chosen is None else effort("reasoning.effort", chosen))


def _summary(reasoning: Mapping[str, Any]) -> str | None:
    """The summary of the reasoning that is asked for, by its name or by the one that it had once."""
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) is not None:
            chosen: str = fields.one_of(*SUMMARIES)(f"reasoning.{name}", reasoning[name])
            return chosen
    return None


def _echoed(values: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a response repeats of its request."""
    return {
        "instructions": values["instructions"] or None,
        "max_output_tokens": values["max_output_tokens"],
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": values["parallel_tool_calls"],
        "previous_response_id": values["previous_response_id"],
        "reasoning": {"effort": values["reasoning"].get("effort"), "summary": _summary(values["reasoning"])},
        "store": values["store"],
        "temperature": values["temperature"],
        "text": {"format": values["text"].get("format") or {"type": "text"}},
        "tool_choice": values["tool_choice"],
        "tools": list(values["tools"]),
        "top_p": values["top_p"],
        "truncation": "disabled",
    }
