"""The formats that are known. The first that fits a template is its own, so narrower ones stand before wider ones."""

from __future__ import annotations

import re

from engine.text.formats.readers import (
    JsonCalls,
    NamedJson,
    PythonCalls,
    QuotedNotation,
    TaggedPairs,
)
from engine.text.formats.record import CallFormat, Channels, Region, ThoughtFormat


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.DOTALL)


def _thought(opens: str, closes: str, *signs: str) -> ThoughtFormat:
    return ThoughtFormat(signs or (closes,), Region((opens,), (closes,)))


THOUGHTS = (
    ThoughtFormat(
        signs=("<|think|>", "<|content|>"),
        region=Region(("<|think|>",), ("<|end|>",)),
        text=Region(("<|content|>",), ("<|end|>", "<|begin|>")),
    ),
    ThoughtFormat(
        signs=("<|open|>", "<|close|>", "<|sep|>"),
        region=Region(("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",)),
        text=Region(("<|open|>response<|sep|>",), ("<|close|>response<|sep|>",)),
    ),
    _thought("<think:opensource>", "</think:opensource>"),
    _thought("<seed:think>", "</seed:think>"),
    _thought("<mm:think>", "</mm:think>"),
    _thought("<|channel>thought", "<channel|>"),
    _thought("<|START_THINKING|>", "<|END_THINKING|>"),
    _thought("<|inner_prefix|>", "<|inner_suffix|>"),
    _thought("[THINK]", "[/THINK]"),
    _thought("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    _thought("<think>", "</think>"),
)

CHANNELS = (
    Channels(
        signs=("<|channel|>", "<|message|>", "<|start|>"),
        opens="<|start|>",
        message="<|message|>",
        closes=("<|end|>", "<|call|>", "<|return|>"),
        recipient=_pattern(r"to=functions\.([^\s<]+)"),
        thought="analysis",
        text="<|channel|>final<|message|>",
        turn="<|start|>assistant",
        channel="<|channel|>",
        forced="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        inner=("<|channel|>", "<|constrain|>"),
    ),
)

_FUNCTION_TAGS = TaggedPairs(
    call=_pattern(r"<function=(?P<name>[^>\s]+)>"),
    call_begins="<function=",
    ends="</function>",
    pair=_pattern(r"\s*<parameter=(?P<key>[^>\n]+)>\n?"),
    pair_begins="<parameter=",
    value_ends="</parameter>",
    text="<parameter=KEY>\n",
    lines=True,
)
_KEY_TAGS = TaggedPairs(
    call=_pattern(r"(?P<name>[^\s<]+)"),
    call_begins="",
    ends="",
    pair=_pattern(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>"),
    pair_begins="<arg_key>",
    value_ends="</arg_value>",
    text="<arg_key>KEY</arg_key>\n<arg_value>",
)
_SUFFIXED_KEY_TAGS = TaggedPairs(
    call=_pattern(r"<tool_call:opensource>(?P<name>[^\s<]+)<tool_sep:opensource>"),
    call_begins="<tool_call:opensource>",
    ends="</tool_call:opensource>",
    pair=_pattern(r"\s*<arg_key:opensource>(?P<key>.*?)</arg_key:opensource>\s*<arg_value:opensource>"),
    pair_begins="<arg_key:opensource>",
    value_ends="</arg_value:opensource>",
    text="<arg_key:opensource>KEY</arg_key:opensource>\n<arg_value:opensource>",
)
_OPEN_TAGS = TaggedPairs(
    call=_pattern(r'<\|open\|>call tool="(?P<name>[^"]+)"[^<>]*<\|sep\|>'),
    call_begins="<|open|>call ",
    ends="<|close|>call<|sep|>",
    pair=_pattern(r'\s*<\|open\|>argument key="(?P<key>[^"]+)"[^<>]*<\|sep\|>'),
    pair_begins="<|open|>argument ",
    value_ends="<|close|>argument<|sep|>",
    text='<|open|>argument key="KEY" type="string"<|sep|>',
)
_M3 = "]<]minimax[>["
_NESTED_TAGS = TaggedPairs(
    call=_pattern(re.escape(_M3) + r'<invoke name="(?P<name>[^"]+)">'),
    call_begins=f"{_M3}<invoke ",
    ends=f"{_M3}</invoke>",
    pair=_pattern(r"\s*" + re.escape(_M3) + r"<(?P<key>[^\s<>/]+)>"),
    pair_begins=f"{_M3}<",
    value_ends=f"{_M3}</KEY>",
    text=f"{_M3}<KEY>",
    mark=_M3,
)


def _invoke_tags(mark: str = "", kind: str = "", of_text: str = "") -> TaggedPairs:
    return TaggedPairs(
        call=_pattern(rf'<{mark}invoke name="(?P<name>[^"]+)">'),
        call_begins=f"<{mark}invoke ",
        ends=f"</{mark}invoke>",
        pair=_pattern(rf'\s*<{mark}parameter name="(?P<key>[^"]+)"{kind}>'),
        pair_begins=f"<{mark}parameter ",
        value_ends=f"</{mark}parameter>",
        text=f'<{mark}parameter name="KEY"{of_text}>',
    )


_INVOKE_TAGS = _invoke_tags()
_MARKED_INVOKE_TAGS = _invoke_tags("｜DSML｜", '(?: string="(?P<string>true|false)")?', ' string="true"')

CALLS = (
    CallFormat(
        name="tool_call with function tags",
        signs=("<tool_call>", "<function="),
        region=Region(("<tool_call>",), ("</tool_call>",)),
        reader=_FUNCTION_TAGS,
        forced="<tool_call>\n<function=NAME>\n",
    ),
    CallFormat(
        name="seed tool_call with function tags",
        signs=("<seed:tool_call>",),
        region=Region(("<seed:tool_call>",), ("</seed:tool_call>",)),
        reader=_FUNCTION_TAGS,
        forced="<seed:tool_call>\n<function=NAME>\n",
    ),
    CallFormat(
        name="tool_call with key and value tags",
        signs=("<tool_call>", "<arg_key>"),
        region=Region(("<tool_call>",), ("</tool_call>",)),
        reader=_KEY_TAGS,
        forced="<tool_call>NAME\n",
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    CallFormat(
        name="suffixed tool_call with key and value tags",
        signs=("<tool_calls:opensource>",),
        region=Region(("<tool_calls:opensource>",), ("</tool_calls:opensource>",)),
        reader=_SUFFIXED_KEY_TAGS,
        forced="<tool_calls:opensource>\n<tool_call:opensource>NAME<tool_sep:opensource>\n",
        inner=tuple(
            f"<{slash}{tag}:opensource>"
            for slash in ("", "/")
            for tag in ("tool_call", "tool_sep", "arg_key", "arg_value")
        ),
    ),
    CallFormat(
        name="minimax nested tags",
        signs=(_M3,),
        region=Region((f"{_M3}<tool_call>",), (f"{_M3}</tool_call>",)),
        reader=_NESTED_TAGS,
        forced=f'{_M3}<tool_call>\n{_M3}<invoke name="NAME">',
        inner=(_M3,),
    ),
    CallFormat(
        name="minimax invoke tags",
        signs=("<minimax:tool_call>",),
        region=Region(("<minimax:tool_call>",), ("</minimax:tool_call>",)),
        reader=_INVOKE_TAGS,
        forced='<minimax:tool_call>\n<invoke name="NAME">\n',
    ),
    CallFormat(
        name="marked function_calls",
        signs=("｜DSML｜", "function_calls"),
        region=Region(("<｜DSML｜function_calls>",), ("</｜DSML｜function_calls>",)),
        reader=_MARKED_INVOKE_TAGS,
        forced='<｜DSML｜function_calls>\n<｜DSML｜invoke name="NAME">\n',
        inner=("｜DSML｜",),
    ),
    CallFormat(
        name="marked tool_calls",
        signs=("｜DSML｜", "tool_calls"),
        region=Region(("<｜DSML｜tool_calls>",), ("</｜DSML｜tool_calls>",)),
        reader=_MARKED_INVOKE_TAGS,
        forced='<｜DSML｜tool_calls>\n<｜DSML｜invoke name="NAME">\n',
        inner=("｜DSML｜",),
    ),
    CallFormat(
        name="deepseek with fenced JSON",
        signs=("<｜tool▁calls▁begin｜>", "```json"),
        region=Region(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",)),
        reader=NamedJson(
            head=_pattern(r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n"),
            tail=("```", "<｜tool▁call▁end｜>"),
        ),
        forced="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    CallFormat(
        name="deepseek",
        signs=("<｜tool▁calls▁begin｜>",),
        region=Region(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",)),
        reader=NamedJson(
            head=_pattern(r"<｜tool▁call▁begin｜>(?P<name>[^<\n]+)<｜tool▁sep｜>"),
            tail=("<｜tool▁call▁end｜>",),
        ),
        forced="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    CallFormat(
        name="kimi",
        signs=("<|tool_calls_section_begin|>",),
        region=Region(("<|tool_calls_section_begin|>",), ("<|tool_calls_section_end|>",)),
        reader=NamedJson(
            head=_pattern(
                r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^\s<]+?)(?::\d+)?)\s*"
                r"<\|tool_call_argument_begin\|>"
            ),
            tail=("<|tool_call_end|>",),
        ),
        forced="<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        ids="numbered",
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    CallFormat(
        name="open and close tags",
        signs=("<|open|>", "<|close|>", "<|sep|>"),
        region=Region(("<|open|>tools<|sep|>",), ("<|close|>tools<|sep|>",)),
        reader=_OPEN_TAGS,
        forced='<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>',
        inner=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    CallFormat(
        name="solar",
        signs=("<|tool_call:begin|>", "<|tool_call:args|>"),
        region=Region(("<|tool_calls|>",), ("<|calls|>", "<|end|>")),
        reader=NamedJson(
            head=_pattern(r"<\|tool_call:begin\|>(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)<\|tool_call:args\|>"),
            tail=("<|tool_call:end|>",),
        ),
        forced="<|tool_calls|><|tool_call:begin|>0000000000<|tool_call:name|>NAME<|tool_call:args|>",
        inner=("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
    ),
    CallFormat(
        name="gemma",
        signs=("<|tool_call>", "<tool_call|>"),
        region=Region(("<|tool_call>",), ("<tool_call|>",)),
        reader=QuotedNotation(quote='<|"|>', head=_pattern(r"call:(?P<name>[^\s{]+)\s*")),
        forced="<|tool_call>call:NAME{",
        inner=('<|"|>',),
    ),
    CallFormat(
        name="list of Python calls",
        signs=("<|tool_call_start|>",),
        region=Region(("<|tool_call_start|>",), ("<|tool_call_end|>",)),
        reader=PythonCalls(),
        forced="<|tool_call_start|>[NAME(",
    ),
    CallFormat(
        name="list of Python calls, told in words",
        signs=("<|tool_list_start|>",),
        region=Region(("<|tool_call_start|>",), ("<|tool_call_end|>",)),
        reader=PythonCalls(),
        forced="<|tool_call_start|>[NAME(",
    ),
    CallFormat(
        name="command",
        signs=("<|START_ACTION|>",),
        region=Region(("<|START_ACTION|>",), ("<|END_ACTION|>",)),
        reader=JsonCalls(names=("tool_name",), arguments=("parameters",)),
        forced='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "NAME", "parameters": ',
    ),
    CallFormat(
        name="mistral with arguments",
        signs=("[TOOL_CALLS]", "[ARGS]"),
        region=Region(("[TOOL_CALLS]",)),
        reader=NamedJson(
            head=_pattern(r"(?P<name>[^\[{\s]+)\s*(?:\[CALL_ID\](?P<id>[^\[]*))?\[ARGS\]"), identity="[CALL_ID]"
        ),
        forced="[TOOL_CALLS]NAME[ARGS]",
        ids="nine",
        inner=("[CALL_ID]", "[ARGS]"),
    ),
    CallFormat(
        name="mistral",
        signs=("[TOOL_CALLS]",),
        region=Region(("[TOOL_CALLS]",)),
        reader=JsonCalls(ids=("id",)),
        forced='[TOOL_CALLS][{"name": "NAME", "arguments": ',
        ids="nine",
    ),
    CallFormat(
        name="apertus",
        signs=("<|tools_prefix|>",),
        region=Region(("<|tools_prefix|>",), ("<|tools_suffix|>",)),
        reader=JsonCalls(keyed=True),
        forced='<|tools_prefix|>[{"NAME": ',
    ),
    CallFormat(
        name="function_call",
        signs=("<|function_call|>",),
        region=Region(("<|function_call|>",)),
        reader=JsonCalls(),
        forced='<|function_call|>{"name": "NAME", "arguments": ',
    ),
    CallFormat(
        name="granite",
        signs=("<|tool_call|>",),
        region=Region(("<|tool_call|>",)),
        reader=JsonCalls(),
        forced='<|tool_call|>[{"name": "NAME", "arguments": ',
    ),
    CallFormat(
        name="TOOLCALL",
        signs=("<TOOLCALL>",),
        region=Region(("<TOOLCALL>",), ("</TOOLCALL>",)),
        reader=JsonCalls(),
        forced='<TOOLCALL>[{"name": "NAME", "arguments": ',
    ),
    CallFormat(
        name="tool_calls",
        signs=("<tool_calls>",),
        region=Region(("<tool_calls>",), ("</tool_calls>",)),
        reader=JsonCalls(),
        forced='<tool_calls>\n{"name": "NAME", "arguments": ',
    ),
    CallFormat(
        name="hermes",
        signs=("<tool_call>",),
        region=Region(("<tool_call>",), ("</tool_call>",)),
        reader=JsonCalls(),
        forced='<tool_call>\n{"name": "NAME", "arguments": ',
    ),
    CallFormat(
        name="function tags with JSON",
        signs=("<function=", "</function>"),
        region=Region(("<function=",), ("</function>",)),
        reader=NamedJson(head=_pattern(r"(?P<name>[^>\s]+)>")),
        forced="<function=NAME>",
    ),
    CallFormat(
        name="llama",
        signs=("<|start_header_id|>", '"parameters"'),
        region=Region(("<|python_tag|>",)),
        reader=JsonCalls(),
        forced='{"name": "NAME", "parameters": ',
        bare=True,
    ),
)
