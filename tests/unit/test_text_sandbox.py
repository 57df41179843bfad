"""Chat templates are foreign code: what they may do, and that none of them can hang or fill the machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import text_models
from transformers import PreTrainedTokenizerFast

from engine.base.errors import FreetokenError
from engine.text.budget import Budget
from engine.text.guard import Guard
from engine.text.template import Template, TemplateStoppedError
from engine.text.text import Text

HOSTILE = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "output": "{% for i in range(99999) %}{% for j in range(99) %}" + "x" * 5000 + "{% endfor %}{% endfor %}",
    "output of a variable": "{% set x = 'x' * 9999999 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "doubling by +": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "repetition": "{{ 'x' * 10 ** 12 }}",
    "repetition of lists": "{{ ([1] * 10 ** 11) | length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "negative repetition is harmless": "{{ 'x' * -5 }}{{ 9 ** 999 }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format method": "{{ '{:999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 999999999) }}",
    "format map": "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "padding method": "{{ 'x'.ljust(999999999) }}",
    "padding filter": "{{ 'x' | center(999999999) }}",
    "indent filter": "{{ 'x\nx' | indent(999999999) }}",
    "json indent": "{{ [1] | tojson(indent=999999999) }}",
    "replace method": "{% set x = 'x' * 99999 %}{{ x.replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 99999 %}{{ x | replace('x', x) }}",
    "join method": "{% set x = 'x' * 99999 %}{{ x.join(x) }}",
    "join filter": "{% set x = 'x' * 99999 %}{{ x | join(x) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "blocks that call themselves": (
        "{% set ns = namespace(n=60) %}{% block a %}{% set ns.n = ns.n - 1 %}"
        "{% if ns.n > 0 %}{{ self.a() }}{{ self.a() }}{% endif %}{% set ns.n = ns.n + 1 %}{% endblock %}"
    ),
    "nesting": "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
    "deep nesting": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "large number": "{{ " + "9" * 9999 + " }}",
    "lorem ipsum": "{{ lipsum(n=99999) }}",
    "budget": "{% set _budget = 1 %}{% for i in range(99999) %}{% for j in range(99) %}{% endfor %}{% endfor %}",
    "filters of ours": "{{ -99999 | book turn }}",
    "interpreter": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "namespace": "{% set ns = namespace(__class__=1) %}",
    "namespace set": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "changing messages": "{{ messages.append(1) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include 'x' %}",
}


def text_with(folder: Path, template: str) -> Text:
    text_models.save(folder, text_models.byte_level(300), None, chat_template=template, bos_token="<s>")
    return Text.load(folder)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(tmp_path: Path, name: str) -> None:
    text = text_with(tmp_path, HOSTILE[name])
    began = time.process_time()
    with pytest.raises(FreetokenError, match=r"^The model's chat template .*\.$"):
        text.render([{"role": "user", "content": "x"}])
    assert time.process_time() - began < 10


def test_time_is_bounded() -> None:
    """Steps that are slow each, so that the clock stops them before their number does."""
    slow = "{% set x = 'ab' * 999999 %}{% for i in range(99999) %}{% set y = x | upper | lower | upper %}{% endfor %}"
    began = time.monotonic()
    with pytest.raises(TemplateStoppedError, match="takes too long"):
        Template(slow, Guard([]), {}).render({}, Budget(seconds=0.2))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "template",
    [
        "{{ {'a': '<&>é'} | tojson }}{{ [1] | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}!",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ dict(a=1) }}{{ dict.fromkeys(['x'], 2) }}{{ namespace(self=3).self }}",
        "{{ '%s-%5.2f' | format('x', 1) }}{{ '%s' % 'x' }}{{ '{:>5}{{}}'.format('x') }}",
        "{{ 'x\ny' | indent(2) }}{{ 'x\ny' | indent('> ', true) }}{{ ['a', 'b'] | join('/') }}",
        "{{ 'aXa' | replace('X', 1) }}{{ 'aXa' | replace('X', '') }}{{ [1, 2] | join }}{{ 'x\ny' | indent(width=3) }}",
        "{{ messages | map(attribute='role') | join(', ') }}{{ messages | join('-', attribute='role') }}",
        "{{ 1 ~ 'a' ~ none ~ true ~ 2.5 ~ [1] ~ nothing }}{{ none }}{{ nothing }}{{ [1, 'x'] }}{{ {'a': none} }}",
        "{% macro m(x, y='d') %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}in{% endcall %}",
        "{% for m in messages recursive %}{{ m.role }}{{ loop.length }}{{ loop.last }}{% endfor %}",
        "{% for m in messages %}{{ loop.revindex }}{{ (loop.previtem or {}).role }}{{ loop.cycle(1, 2) }}{% endfor %}",
        "{{ messages[::-1][0].role }}{{ messages | length }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}",
        "{{ [1] + [2] }}{{ 3 * 'ab' }}{{ 'ab' * 2 }}{{ 1 + 2 }}{{ 'a' + 'b' }}{{ 'x' * -1 }}{{ -7 // 2 }}",
        "  {%- if messages[0].content is string and messages[0]['content'] is defined %}\n  yes\n  {% endif %}\n no ",
        "{{ messages[0].content | trim | upper }}{{ 'A b'.split(' ') }}{{ 'x'.join(['1', '2']) }}",
        "{{ 'aba'.replace('a', 'c') }}{{ 'aba'.replace('a', 'c', 1) }}{{ 'x'.startswith('x') }}{{ ''.join('abc') }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ strftime_now('%Y-%m-%d') }}{{ bos_token }}{{ eos_token }}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0] | items | list }}",
        "{% filter upper %}abc{{ messages[0].content }}{% endfilter %}",
        "{% set x %}block{% endset %}{{ x }}{{ '<b>' | e }}{% for x in [] %}{% else %}none{% endfor %}",
    ],
)
def test_what_templates_may_do(tmp_path: Path, template: str) -> None:
    """The same as in transformers, character for character."""
    text = text_with(tmp_path, template)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [
        {"role": "system", "content": " a<b "},
        {"role": "user", "content": "é"},
        {"role": "user", "content": "c"},
    ]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.render(messages).text == expected


def test_long_conversations_are_no_attack(tmp_path: Path) -> None:
    text = Text.load(text_models.thinking(tmp_path))
    turns = [{"role": role, "content": "word " * 20} for _ in range(2000) for role in ("user", "assistant")]
    assert text.render(turns).text.count("<|im_end|>") == 4000
    assert len(text.render([{"role": "user", "content": "x" * 3_000_000}]).text) > 3_000_000


def test_too_long_template(tmp_path: Path) -> None:
    with pytest.raises(FreetokenError, match="characters long"):
        text_with(tmp_path, "x" * 2_000_000).render([{"role": "user", "content": "x"}])
