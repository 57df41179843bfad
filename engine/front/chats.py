"""From the messages of a chat to the prompt of an answer, and to how that answer is read."""

from __future__ import annotations

from dataclasses import replace

from engine.base.spelling import Spelling
from engine.front.asked import ChatAsked
from engine.front.forms.held_calls import HeldCalls, held_calls
from engine.front.jobs import Reader
from engine.front.wire.fields import FieldError
from engine.memory.retention import Anchor
from engine.text.formats.parser import Part, part_after
from engine.text.formats.reasoning import thought_edges
from engine.text.formats.record import AnswerFormat
from engine.text.text import Text
from engine.worker.protocol import Grammar, ThoughtBound

PromptIds = tuple[tuple[int, ...], tuple[Anchor, ...]]
"""The ids of a prompt, and the edges in it."""


def chat_prompt(text: Text, asked: ChatAsked) -> tuple[PromptIds, Reader]:
    """The prompt for a conversation; where a tool has to be called it ends with the beginning of a call.

    Raises UsageError naming the message that is wrong, or for tools that the model's template cannot take.
    """
    use = asked.tools
    offered = None if use.schemas is None else use.offer.functions
    budget = {} if asked.budget is None else {"thinking_budget": asked.budget.tokens}  # some templates tell the model
    prompt = text.render(asked.messages, tools=offered, **{**budget, **asked.template_values})
    form = text.answer_format(with_tools=offered is not None)
    if offered is not None and form.calls is None and form.channels is None:
        raise FieldError(
            "tools",
            "the model's chat template says nothing of tool calls that this release can read.",
            "Leave them out, or take a model that calls tools.",
        )
    bound = _thought_bound(text, form, part_after(form, prompt.text), asked)
    if not asked.reads_reasoning:
        form = replace(form, thought=None)
    part = part_after(form, prompt.text)
    begins_in = Part.SAID if asked.prefill else part
    calls = HeldCalls() if use.schemas is None else held_calls(text, form, use, begins_in)
    reader = Reader(
        form=form,
        tools=use.schemas,
        part=begins_in,
        parallel=use.parallel,
        grammars=() if calls.grammar is None else (calls.grammar,),
        bound=bound,
        custom=use.offer.custom,
        enforced=calls.enforced,
    )
    ids = tuple(prompt.ids)
    if asked.prefill:
        ids += (*text.encode_prompt(_end_of_thinking(form, part), False), *text.encode(asked.prefill))
    elif use.forced is not None:
        begun = _end_of_thinking(form, part) + calls.begun
        ids += tuple(text.encode_prompt(begun, add_special=False))
        reader = replace(reader, begun=begun, parallel=use.several)
    elif asked.grammar:
        unless = _begun_call(text, form) if use.schemas is not None else None
        formed = Grammar(asked.grammar, _before_text(text, form, part), unless=unless)
        reader = replace(reader, grammars=(formed, *reader.grammars))
    return (ids, prompt.anchors), reader


def _thought_bound(text: Text, form: AnswerFormat, part: Part, asked: ChatAsked) -> ThoughtBound | None:
    """The bound of reasoning for a request that has one, where the model's answers can hold reasoning."""
    use = asked.tools
    edges = thought_edges(form, calls=use.schemas is not None, formed=bool(asked.grammar))
    if asked.budget is None or edges is None:
        return None
    ids = (token for words in edges.closing for token in text.encode_prompt(words, add_special=False))
    return ThoughtBound(
        tokens=asked.budget.tokens,
        opens=(text.spelling(edges.opens, edges.first),),
        closes=tuple(text.spelling(marker) for marker in edges.closes),
        closing=tuple(ids),
        begun=part is Part.THOUGHT and not asked.prefill and use.forced is None,
        barred=tuple(text.spelling(edges.barred, first=True).steps) if edges.barred else (),
        characters=text.character_edges,
    )


def _end_of_thinking(form: AnswerFormat, part: Part) -> str:
    """What ends reasoning that the prompt has begun."""
    if part is not Part.THOUGHT or form.thought is None:
        return ""
    return f"{form.thought.region.closes[0]}\n\n"


def _before_text(text: Text, form: AnswerFormat, part: Part) -> Spelling | None:
    """What the text of an answer begins behind; None where it begins at once."""
    if part is Part.SAID:
        return None
    if form.channels is not None:
        return text.spelling(form.channels.text)
    thought = form.thought
    assert thought is not None
    return text.spelling(thought.region.closes[0] if thought.text is None else thought.text.opens[0])


def _begun_call(text: Text, form: AnswerFormat) -> Spelling | None:
    """What an answer begins with that calls a tool. In channels a call has a header of its own."""
    return None if form.calls is None else text.spelling(form.calls.region.opens[0], first=True)
