"""Answers as models of many families write them, with what they mean. They are spelt as the models' templates do."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.text.formats.parser import Part
from engine.text.formats.pieces import Call, Said, Thought

Meaning = Said | Thought | Call
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}},
}
TOOLS = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}}
ARGUMENTS = '{"city": "Pa\\"ris\\nX", "days": 2, "options": {"a": [1, true]}}'
PARIS, OSLO = Call("get_weather", ARGUMENTS), Call("get_weather", '{"city": "Oslo"}')
BOTH = (PARIS, OSLO)
CITY = 'Pa"ris\nX'


@dataclass(frozen=True)
class Sample:
    """`evidence` is what shows the format, `answer` what the model says, `meaning` its parts, neighbours joined."""

    name: str
    evidence: str
    answer: str
    meaning: tuple[Meaning, ...]
    part: Part = field(default=Part.SAID)


def _calls_by_json(opens: str, closes: str, between: str = "\n") -> str:
    return between.join(
        f'{opens}{{"name": "get_weather", "arguments": {arguments}}}{closes}'
        for arguments in (ARGUMENTS, '{"city": "Oslo"}')
    )


def _function_tags(opens: str, closes: str, space: str = "\n") -> str:
    def call(pairs: dict[str, str]) -> str:
        inner = "".join(f"<parameter={key}>{space}{value}{space}</parameter>\n" for key, value in pairs.items())
        return f"{opens}\n<function=get_weather>\n{inner}</function>\n{closes}"

    return call({"city": CITY, "days": "2", "options": '{"a": [1, true]}'}) + "\n" + call({"city": "Oslo"})


def _key_tags(space: str) -> str:
    def call(pairs: dict[str, str]) -> str:
        inner = space.join(
            f"<arg_key>{key}</arg_key>{space}<arg_value>{value}</arg_value>" for key, value in pairs.items()
        )
        return f"<tool_call>get_weather{space}{inner}{space}</tool_call>"

    return call({"city": CITY, "days": "2", "options": '{"a": [1, true]}'}) + space + call({"city": "Oslo"})


def _invoke_tags(block: str, mark: str = "", typed: bool = False) -> str:
    def pair(key: str, value: str, kind: str) -> str:
        kind = f' string="{kind}"' if typed else ""
        return f'<{mark}parameter name="{key}"{kind}>{value}</{mark}parameter>\n'

    first = pair("city", CITY, "true") + pair("days", "2", "false") + pair("options", '{"a": [1, true]}', "false")
    calls = "".join(
        f'<{mark}invoke name="get_weather">\n{pairs}</{mark}invoke>\n'
        for pairs in (first, pair("city", "Oslo", "true"))
    )
    return f"<{block}>\n{calls}</{block}>"


def _hy(*pairs: tuple[str, str]) -> str:
    inner = "".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n"
        for key, value in pairs
    )
    return f"<tool_call:opensource>get_weather<tool_sep:opensource>\n{inner}</tool_call:opensource>\n"


_M = "]<]minimax[>["
_M3_PARIS = (
    f'{_M}<invoke name="get_weather">{_M}<city>{CITY}{_M}</city>{_M}<days>2{_M}</days>{_M}<options>{_M}<a>{_M}<item>1'
    f"{_M}</item>{_M}<item>true{_M}</item>{_M}</a>{_M}</options>{_M}</invoke>\n"
)
_M3_OSLO = f'{_M}<invoke name="get_weather">{_M}<city>Oslo{_M}</city>{_M}</invoke>\n'


def _open(tag: str, rest: str = "") -> str:
    return f"<|open|>{tag}{rest}<|sep|>"


def _close(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def _open_call(number: int, *pairs: tuple[str, str, str]) -> str:
    inner = "".join(
        _open("argument", f' key="{key}" type="{kind}"') + value + _close("argument") for key, kind, value in pairs
    )
    return _open("call", f' tool="get_weather" index="{number}"') + inner + _close("call")


THINKS_AND_SAYS = (Thought("Hm."), Said("Well"))
SAMPLES = (
    Sample("plain", "", "Well <think>no</think> {\n", (Said("Well <think>no</think> {\n"),)),
    Sample("thinking", "<think></think>", "<think>\nHm.\n</think>\n\nWell\n", (Thought("Hm."), Said("Well\n"))),
    Sample("thinking already", "<think></think>", "Hm.\n</think>\n\nWell", THINKS_AND_SAYS, Part.THOUGHT),
    Sample("thinking later", "<think></think>", "Say <think>so</think>", (Said("Say <think>so</think>"),)),
    Sample("unfinished thinking", "<think></think>", "Hm. <", (Thought("Hm. <"),), Part.THOUGHT),
    Sample(
        "hermes",
        "<think></think><tool_call>",
        "<think>\nHm.\n</think>\n\nWell\n" + _calls_by_json("<tool_call>\n", "\n</tool_call>"),
        (*THINKS_AND_SAYS, *BOTH),
    ),
    Sample(
        "hermes, its marker in a string",
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {"x": "</tool_call> \\" </tool_call>"}}</tool_call> Done',
        (Call("now", '{"x": "</tool_call> \\" </tool_call>"}'), Said("Done")),
    ),
    Sample(
        "function tags",
        "<think></think><tool_call><function=",
        "Hm.\n</think>\n\nWell\n\n" + _function_tags("<tool_call>", "</tool_call>"),
        (*THINKS_AND_SAYS, *BOTH),
        Part.THOUGHT,
    ),
    Sample(
        "seed",
        "<seed:think></seed:think><seed:tool_call>",
        "<seed:think>Hm.</seed:think>Well" + _function_tags("<seed:tool_call>", "</seed:tool_call>", space=""),
        (*THINKS_AND_SAYS, *BOTH),
    ),
    Sample(
        "glm",
        "<think></think><tool_call><arg_key>",
        "Hm.</think>Well" + _key_tags(""),
        (*THINKS_AND_SAYS, *BOTH),
        Part.THOUGHT,
    ),
    Sample("glm, spaced", "<tool_call><arg_key>", "Well\n" + _key_tags("\n"), (Said("Well"), *BOTH)),
    Sample(
        "hunyuan",
        "<think:opensource></think:opensource><tool_calls:opensource>",
        "<think:opensource>Hm.</think:opensource>Well<tool_calls:opensource>\n"
        + _hy(("city", CITY), ("days", "2"), ("options", '{"a": [1, true]}'))
        + _hy(("city", "Oslo"))
        + "</tool_calls:opensource>",
        (*THINKS_AND_SAYS, *BOTH),
    ),
    Sample(
        "minimax",
        "<think></think><minimax:tool_call>",
        "Hm.\n</think>\n\nWell\n" + _invoke_tags("minimax:tool_call"),
        (*THINKS_AND_SAYS, *BOTH),
        Part.THOUGHT,
    ),
    Sample(
        "minimax, nested",
        "<mm:think></mm:think>]<]minimax[>[",
        f"<mm:think>Hm.</mm:think>Well{_M}<tool_call>\n{_M3_PARIS}{_M3_OSLO}{_M}</tool_call>",
        (*THINKS_AND_SAYS, *BOTH),
    ),
    Sample(
        "deepseek v3.2",
        "</think>｜DSML｜ function_calls",
        "Well\n\n" + _invoke_tags("｜DSML｜function_calls", "｜DSML｜", typed=True),
        (Said("Well"), *BOTH),
    ),
    Sample(
        "deepseek v4",
        "</think>｜DSML｜ tool_calls",
        "Well\n\n" + _invoke_tags("｜DSML｜tool_calls", "｜DSML｜", typed=True),
        (Said("Well"), *BOTH),
    ),
    Sample(
        "deepseek v3",
        "<｜tool▁calls▁begin｜>```json",
        "Well<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{call.arguments}\n```<｜tool▁call▁end｜>"
            for call in BOTH
        )
        + "<｜tool▁calls▁end｜>",
        (Said("Well"), *BOTH),
    ),
    Sample(
        "deepseek v3.1",
        "<｜tool▁calls▁begin｜>",
        "Well<｜tool▁calls▁begin｜>"
        + "".join(f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{call.arguments}<｜tool▁call▁end｜>" for call in BOTH)
        + "<｜tool▁calls▁end｜>",
        (Said("Well"), *BOTH),
    ),
    Sample(
        "kimi",
        "<|tool_calls_section_begin|>",
        "Well<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.get_weather:{i}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
            for i, call in enumerate(BOTH)
        )
        + "<|tool_calls_section_end|>",
        (Said("Well"), *(Call(call.name, call.arguments, f"functions.get_weather:{i}") for i, call in enumerate(BOTH))),
    ),
    Sample(
        "open and close tags",
        "<|open|><|close|><|sep|>",
        "Hm."
        + _close("think") + _open("response") + "Well" + _close("response") + _open("tools")
        + _open_call(1, ("city", "string", CITY), ("days", "number", "2"), ("options", "object", '{"a": [1, true]}'))
        + _open_call(2, ("city", "string", "Oslo"))
        + _close("tools") + _close("message"),
        (*THINKS_AND_SAYS, *BOTH),
        Part.THOUGHT,
    ),
    Sample(
        "solar",
        "<|think|><|content|><|tool_call:begin|><|tool_call:args|>",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Well<|end|><|begin|>assistant<|tool_calls|>"
        + "".join(
            f"<|tool_call:begin|>c{i}<|tool_call:name|>get_weather<|tool_call:args|>{call.arguments}<|tool_call:end|>"
            for i, call in enumerate(BOTH)
        )
        + "<|calls|>",
        (*THINKS_AND_SAYS, *(Call(call.name, call.arguments, f"c{i}") for i, call in enumerate(BOTH))),
        Part.BETWEEN,
    ),
    Sample(
        "harmony",
        "<|start|><|channel|><|message|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Well<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        + ARGUMENTS
        + "<|call|>",
        (*THINKS_AND_SAYS, PARIS),
        Part.BETWEEN,
    ),
    Sample(
        "harmony, the recipient first",
        "<|start|><|channel|><|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>" + ARGUMENTS,
        (PARIS,),
        Part.BETWEEN,
    ),
    Sample("harmony without a header", "<|start|><|channel|><|message|>", "Well", (Said("Well"),), Part.BETWEEN),
    Sample(
        "gemma",
        "<|channel>thought<channel|><|tool_call><tool_call|>",
        '<|channel>thought\nHm.\n<channel|>Well<|tool_call>call:get_weather{city:<|"|>Pa"ris\nX<|"|>,days:2,'
        'options:{a:[1,true]}}<tool_call|><|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>',
        (*THINKS_AND_SAYS, *BOTH),
    ),
    Sample(
        "Python calls",
        "<|tool_call_start|>",
        "Well<|tool_call_start|>[get_weather(city='Pa\"ris\nX', days=2, options={\"a\": [1, true]}), "
        "get_weather(city='Oslo')]<|tool_call_end|>",
        (Said("Well"), *BOTH),
    ),
    Sample(
        "command",
        "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
        'Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + ARGUMENTS
        + '},\n    {"tool_call_id": "1", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|>',
        (Thought("Hm."), *BOTH),
        Part.THOUGHT,
    ),
    Sample(
        "mistral",
        "[TOOL_CALLS]",
        '[TOOL_CALLS][{"name": "get_weather", "id": "abcdefgh1", "arguments": ' + ARGUMENTS + "}, "
        '{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abcdefgh2"}]',
        (Call("get_weather", ARGUMENTS, "abcdefgh1"), OSLO),  # an id is read that comes before the arguments are told
    ),
    Sample(
        "mistral with arguments",
        "[THINK][/THINK][TOOL_CALLS][ARGS]",
        "[THINK]Hm.[/THINK]Well[TOOL_CALLS]get_weather[CALL_ID]abcdefgh1[ARGS]" + ARGUMENTS
        + '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
        (*THINKS_AND_SAYS, Call("get_weather", ARGUMENTS, "abcdefgh1"), OSLO),
    ),
    Sample(
        "apertus",
        "<|tools_prefix|>",
        'Well<|tools_prefix|>[{"get_weather": ' + ARGUMENTS + '}, {"get_weather": {"city": "Oslo"}}]<|tools_suffix|>',
        (Said("Well"), *BOTH),
    ),
    Sample("JSON lines", "<tool_calls>", "<tool_calls>\n" + _calls_by_json("", "") + "\n</tool_calls>", BOTH),
    Sample(
        "functionary",
        "<function=</function>",
        f"Well<function=get_weather>{ARGUMENTS}</function>",
        (Said("Well"), PARIS),
    ),
    Sample(
        "llama",
        '<|start_header_id|>"parameters"',
        '{"name": "get_weather", "parameters": ' + ARGUMENTS + "}",
        (PARIS,),
    ),
    Sample(
        "llama, JSON that is no call",
        '<|start_header_id|>"parameters"',
        '{"name": "Anna", "parameters": {}}',
        (Said('{"name": "Anna", "parameters": {}}'),),
    ),
    Sample(
        "a call cut short",
        "<tool_call>",
        'Well\n<tool_call>\n{"name": "get_wea',
        (Said('Well\n<tool_call>\n{"name": "get_wea'),),
    ),
    Sample(
        "a call cut short in its arguments",
        "<tool_call>",
        'Well\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\"ris", "options": {"a": [1, "b\\',
        (Said("Well"), Call("get_weather", '{"city": "Pa\\"ris", "options": {"a": [1, "b"]}}')),
    ),
    Sample(
        "a call cut short in a number, which may have been another",
        "<tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1',
        (OSLO,),
    ),
    Sample(
        "a call cut short between tags",
        "<tool_call><function=",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</para",
        (OSLO,),
    ),
    Sample(
        "a call whose arguments break off, and one after it",
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": 1, oh no}}</tool_call> So:\n'
        '<tool_call>{"name": "now"}</tool_call>',
        (Call("now", '{"a": 1}'), Said("oh no}} So:"), Call("now", "{}")),
    ),
    Sample(
        "a call whose end is missing",
        "<tool_call><function=",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>",
        (OSLO,),
    ),
    Sample(
        "a call, and something else in the place of another",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>\nHm.<｜tool▁calls▁end｜>",
        (Call("now", "{}"), Said("Hm.")),
    ),
    Sample(
        "a call of what JSON cannot hold",
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": [NaN, 1e999, "\\ud83d", "\\d+"],}}</tool_call>',
        (Call("now", '{"a": [null, null, "\ufffd", "\\\\d+"]}'),),
    ),
    Sample(
        "arguments before the name, in text of their own",
        "<tool_call>",
        '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "now"}</tool_call>',
        (Call("now", '{"a": 1}'),),
    ),
    Sample(
        "a value that holds what ends one",
        "<tool_call><function=",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n</parameter> </function>\n\n</parameter>\n</function>\n"
        "</tool_call>",
        (Call("get_weather", '{"city": "</parameter> </function>\\n"}'),),
    ),
    Sample(
        "a call that is none, and one after it",
        "<tool_call>",
        'Well <tool_call>{"a": 1}</tool_call> and <tool_call>{"name": "now"}</tool_call>',
        (Said('Well <tool_call>{"a": 1}</tool_call> and'), Call("now", "{}")),
    ),
    Sample(
        "an unfinished section whose calls are whole",
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
        (PARIS,),
    ),
)  # fmt: skip
