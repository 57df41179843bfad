"""From the messages of a chat to the prompt of an answer, and to how that answer is read."""

from __future__ import annotations

from engine.front.answers import Reader
from engine.front.asked import ChatAsked
from engine.front.fields import FieldError
from engine.text.anchors import Anchor
from engine.text.formats.parser import Part, forced_beginning, part_after
from engine.text.formats.record import AnswerFormat
from engine.text.text import Text

PromptIds = tuple[tuple[int, ...], tuple[Anchor, ...]]
"""The ids of a prompt, and the edges in it."""


def chat_prompt(text: Text, asked: ChatAsked) -> tuple[PromptIds, Reader]:
    """The prompt for a conversation; where a tool has to be called it ends with the beginning of a call.

    Raises UsageError naming the message that is wrong, or for tools that the model's template cannot take.
    """
    use = asked.tools
    offered = None if use.schemas is None else use.offered
    prompt = text.render(asked.messages, tools=offered, **asked.template_values)
    form = text.answer_format(with_tools=offered is not None)
    if offered is not None and form.calls is None and form.channels is None:
        raise FieldError(
            "tools",
            "the model's chat template says nothing of tool calls that this release can read.",
            "Leave them out, or take a model that calls tools.",
        )
    part = part_after(form, prompt.text)
    if asked.prefill:
        ids = (*prompt.ids, *text.encode_prompt(_end_of_thinking(form, part), False), *text.encode(asked.prefill))
        return (ids, prompt.anchors), Reader(form, use.schemas, Part.SAID, parallel=use.parallel)
    if use.forced is None:
        return (tuple(prompt.ids), prompt.anchors), Reader(form, use.schemas, part, parallel=use.parallel)
    begun = _end_of_thinking(form, part) + forced_beginning(form, use.forced)
    ids = (*prompt.ids, *text.encode_prompt(begun, add_special=False))
    return (ids, prompt.anchors), Reader(form, use.schemas, part, begun, use.parallel and use.forced == "")


def _end_of_thinking(form: AnswerFormat, part: Part) -> str:
    """What ends reasoning that the prompt has begun."""
    if part is not Part.THOUGHT or form.thought is None:
        return ""
    return f"{form.thought.region.closes[0]}\n\n"
