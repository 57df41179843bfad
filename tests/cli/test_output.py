"""The sink, the terminal's rules, conversations and statistics, without processes."""

import io
import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, FreetokenError, NotFoundError, UsageError
from freetoken_cli.benchmarks import read_texts
from freetoken_cli.chart import Bar, draw
from freetoken_cli.chat import SAMPLING, Sampling, Statistics
from freetoken_cli.conversation import Conversation
from freetoken_cli.output import Column, Output, cell_width, pad
from freetoken_cli.slash import COMMANDS
from freetoken_cli.terminal import harmless, may_animate, may_colour, printable

COLUMNS = (Column("NAME", "name"), Column("SIZE", "size", lambda value: f"{value} B", right=True))
RECORDS = [{"name": "a", "size": 5}, {"name": "long name", "size": 12345}]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def _output(**form: bool) -> Output:
    return Output(io.StringIO(), io.StringIO(), **form)


def _written(output: Output) -> str:
    assert isinstance(output.stdout, io.StringIO)
    return output.stdout.getvalue()


def test_one_listing_three_forms() -> None:
    table, names, document = _output(), _output(quiet=True), _output(as_json=True)
    for output in (table, names, document):
        output.listing("things", COLUMNS, RECORDS)
    assert _written(table) == "NAME          SIZE\na              5 B\nlong name  12345 B\n"
    assert _written(names) == "a\nlong name\n"
    assert json.loads(_written(document)) == {"version": 1, "things": RECORDS}


def test_an_empty_listing_keeps_its_titles() -> None:
    output = _output()
    output.listing("things", COLUMNS, [])
    assert _written(output) == "NAME  SIZE\n"


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=5))
def test_padded_lines_align(rows: list[tuple[str, str]]) -> None:
    clean = [(printable(first), printable(second) + "|") for first, second in rows]
    lines = pad(clean, (Column("", ""), Column("", "", right=True)))
    assert len({cell_width(line) for line in lines}) == 1


@given(st.text())
def test_names_cannot_command_a_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert not set("\x1b\x07\x08\r\x9b\u202e") & set(harmless(text))


def test_ordinary_answers_pass_as_they_are() -> None:
    text = "Grüße,\n\tžluťoučký kůň 3 · 日本語 👩‍👩‍👧 — “quoted”\n"
    assert harmless(text) == text
    assert harmless("\x1b]0;title\x07") == "\\x1b]0;title\\x07"


def test_text_for_a_pipe_is_untouched_and_for_a_terminal_harmless() -> None:
    pipe, terminal = _output(), Output(Tty(), io.StringIO())
    for output in (pipe, terminal):
        output.text("a\x1b[2J")
    assert _written(pipe) == "a\x1b[2J"
    assert _written(terminal) == "a\\x1b[2J"


@pytest.mark.parametrize(
    ("stream", "environment", "no_color", "colour", "animation"),
    [
        (Tty(), {}, False, True, True),
        (Tty(), {"NO_COLOR": "1"}, False, False, True),
        (Tty(), {"NO_COLOR": ""}, False, True, True),
        (Tty(), {"TERM": "dumb"}, False, False, False),
        (Tty(), {}, True, False, True),
        (io.StringIO(), {}, False, False, False),
    ],
)
def test_what_a_stream_can_show(
    stream: io.StringIO, environment: dict[str, str], no_color: bool, colour: bool, animation: bool
) -> None:
    assert may_colour(stream, environment, no_color) is colour
    assert may_animate(stream, environment) is animation


def test_a_closed_stream_shows_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    assert not may_colour(stream, {})


def test_phases_are_one_line_without_a_terminal() -> None:
    output = _output()
    with output.phase("Working") as progress:
        for done in range(5):
            progress(done, 5)
    assert isinstance(output.stderr, io.StringIO)
    assert output.stderr.getvalue() == "Working\n"


def test_phases_move_on_a_terminal_and_leave_nothing() -> None:
    output = Output(io.StringIO(), Tty(), animate=True)
    with output.phase("Working") as progress:
        progress(1, 2)
        progress(2, 2)
    assert isinstance(output.stderr, Tty)
    assert "Working" in output.stderr.getvalue()
    assert _written(output) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "-1"),
        ("top_p", "1.1"),
        ("top_k", "1.5"),
        ("min_p", "nan"),
        ("seed", "x"),
        ("max_tokens", "0"),
        ("thinking_budget", "-1"),
    ],
)
def test_bad_sampling_is_named(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sampling.from_flags({name: text})
    assert caught.value.message.startswith(f"--{name.replace('_', '-')}: ")
    assert text in caught.value.message


def test_default_goes_back_to_the_models_own() -> None:
    for name in SAMPLING:
        assert Sampling().with_text(name, "1").with_text(name, "default") == Sampling()


def test_statistics_tell_what_is_known() -> None:
    known = {
        "load": 1.5,
        "prompt_tokens": 9,
        "hit_rate": 0.845,
        "misses_filled": 3,
        "link": 25.25,
        "future": 1,
        "memory": None,
    }
    lines = dict(Statistics.from_json(known).lines())
    assert lines["load"] == "1.5 s"
    assert lines["expert hits"] == "84.5%"
    assert lines["misses"] == "3 filled, 0 computed on the CPU"
    assert lines["link"] == "25.2 GB/s"
    assert "memory" not in lines
    assert "first token" not in lines


def test_statistics_of_a_device_name_the_virtual_clock_and_why_misses_are_divided_so() -> None:
    known = {
        "hit_rate": 0.845,
        "misses_per_layer": 1.24,
        "misses_filled": 30,
        "misses_computed": 10,
        "cpu_share": 0.04,
        "link": 25.25,
        "host": 33.0,
        "clock": "rtx4090-server",
        "fraction": 0.4,
        "why": "both branches end together",
    }
    lines = dict(Statistics.from_json(known).lines())
    assert lines["expert hits"] == "84.5%, 1.2 misses a layer and step"
    assert lines["misses"] == "30 filled, 10 computed on the CPU (4% of experts)"
    assert lines["link"] == "25.2 GB/s (virtual, rtx4090-server)"
    assert lines["CPU experts"] == "33.0 GB/s (virtual, rtx4090-server)"
    assert lines["split"] == "f = 0.40: both branches end together"
    measured = dict(Statistics.from_json({**known, "clock": None}).lines())
    assert measured["link"] == "25.2 GB/s"


def test_a_conversation_survives_its_file(tmp_path: Path) -> None:
    talk = Conversation("Be kind.")
    talk.add("user", "hi\n\x00 👋")
    talk.add("assistant", "hello")
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json") == talk
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


HEAD = '"format": "freetoken-conversation", "version"'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": "other", "version": 1}',
        f'{{{HEAD}: 2, "system": "", "messages": []}}',
        f'{{{HEAD}: 1, "system": "", "messages": [{{"role": "robot", "content": ""}}]}}',
        f'{{{HEAD}: 1, "system": "", "messages": [{{"role": "user"}}]}}',
        f'{{{HEAD}: 1, "system": null, "messages": []}}',
        f'{{{HEAD}: 1, "system": "\\ud800", "messages": []}}',
        f'{{{HEAD}: 1, "system": "", "messages": [{{"role": "user", "content": "\\udcff"}}]}}',
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    with pytest.raises(CorruptFileError, match=str(path)):
        Conversation.load(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "pipe.json", Path("/dev/zero")):
        with pytest.raises(CorruptFileError, match=str(path)):
            Conversation.load(path)


def test_prompts_are_read_from_a_file_and_nothing_else(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CorruptFileError, match="not a regular file"):
            read_texts(path)
    (tmp_path / "texts").write_bytes(b"One?\n\n  Two? \n")
    assert read_texts(tmp_path / "texts") == ("One?", "Two?")


def test_a_disk_that_takes_no_conversation_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    Conversation("Be kind.").save(path)
    long = Conversation("Be kind. " * 2000)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(FreetokenError, match=f"{path} cannot be written: File too large"):
            long.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert Conversation.load(path).system == "Be kind."
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_a_missing_conversation_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        Conversation.load(tmp_path / "none.json")


def test_the_slash_commands_are_those_promised() -> None:
    promised = ["/set", "/show", "/clear", "/stats", "/resize", "/save", "/load", "/think", "/?", "/bye"]
    assert [command.name for command in COMMANDS] == promised
    usages = [(command, *row) for command in COMMANDS for row in ((command.usage, command.summary), *command.more)]
    assert all(usage.startswith(command.name) and summary for command, usage, summary in usages)


def test_bars_are_to_scale() -> None:
    bars = [Bar("a", "10", 10), Bar("bb", "5", 5), Bar("c", "0", 0)]
    assert draw(bars, 8, unicode=False) == ["a   10  ########", "bb   5  ####", "c    0"]
    assert draw(bars, 8, unicode=True)[1] == "bb   5  ████"
    assert draw([], 8, unicode=True) == []


@pytest.mark.parametrize(("columns", "cells"), [(120, 40), (30, 22), (10, 8)])
def test_bars_are_shorter_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, cells: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert draw([Bar("bb", "10", 10)], 40, unicode=False) == [f"bb  10  {'#' * cells}"]
