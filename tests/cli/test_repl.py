"""The REPL on a pseudo-terminal, against the fake front: editing, blocks, commands, Ctrl-C, failures."""

import json
import signal
from collections.abc import Iterator

import pexpect
import pytest

from freetoken_cli.sessions import SavedSession
from tests.cli.harness import PROGRAM, FakeFront, Home, hear_ctrl_c, wait_for

PROMPT = ">>> "
ENTER = "\r"
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A REPL on a pseudo-terminal. `expect` looks for plain text; escape sequences between words are none of ours."""

    def __init__(self, home: Home, *args: str) -> None:
        self.child = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "run", "demo", *args],
            env={**home.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=str(home.folder),
            encoding="utf-8",
            timeout=8,
            dimensions=(40, 200),
            preexec_fn=hear_ctrl_c,
        )

    def expect(self, text: str) -> None:
        self.child.expect_exact(text)

    def ask(self, line: str) -> None:
        """Type a line when the prompt is there."""
        self.child.expect_exact(PROMPT)
        self.child.send(line + ENTER)

    def leave(self) -> int:
        """Ctrl-D on an empty line; the exit code."""
        self.child.expect_exact(PROMPT)
        self.child.send(CTRL_D)
        return self.ended()

    def ended(self) -> int:
        """The exit code of a REPL that is leaving."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus or 0)


@pytest.fixture
def terminal(home: Home, ready: FakeFront) -> Iterator[Terminal]:
    terminal = Terminal(home)
    yield terminal
    terminal.child.close(force=True)


def _asked(front: FakeFront) -> list[str]:
    return [body["messages"][-1]["content"] for body in front.requests("/v1/chat/completions")]


def test_a_conversation_keeps_its_turns(terminal: Terminal) -> None:
    terminal.expect("demo on cpu")
    terminal.ask("good day")
    terminal.expect("GOOD DAY")
    terminal.ask("count")
    terminal.expect("3 messages")
    terminal.ask("/clear")
    terminal.expect("The conversation is empty.")
    terminal.ask("count")
    terminal.expect("1 messages")
    assert terminal.leave() == 0


def test_a_block_is_one_message(terminal: Terminal, ready: FakeFront) -> None:
    terminal.ask('"""first')
    terminal.expect("... ")
    terminal.child.send("second" + ENTER)
    terminal.expect("... ")
    terminal.child.send('third"""' + ENTER)
    terminal.expect("FIRST")
    assert terminal.leave() == 0
    assert _asked(ready) == ["first\nsecond\nthird"]


def test_a_block_ends_where_a_line_ends_with_quotes_and_is_never_a_command(
    terminal: Terminal, ready: FakeFront
) -> None:
    terminal.ask('"""/bye')
    terminal.expect("... ")
    terminal.child.send('a """ b' + ENTER)
    terminal.expect("... ")
    terminal.child.send('c """  ' + ENTER)
    terminal.ask('"""/bye"""')
    terminal.expect("/BYE")
    assert terminal.leave() == 0
    assert _asked(ready) == ['/bye\na """ b\nc ', "/bye"]


def test_quotes_within_a_paste_are_part_of_it(terminal: Terminal, ready: FakeFront) -> None:
    terminal.ask('\x1b[200~"""Doc."""\nx = 1\x1b[201~')
    terminal.expect("X = 1")
    terminal.ask('\x1b[200~"""one\ntwo"""\x1b[201~')
    terminal.expect("TWO")
    assert terminal.leave() == 0
    assert _asked(ready) == ['"""Doc."""\nx = 1', "one\ntwo"]


def test_a_paste_is_one_message(terminal: Terminal, ready: FakeFront) -> None:
    terminal.ask("\x1b[200~one\ntwo\x1b[201~")
    terminal.expect("TWO")
    assert terminal.leave() == 0
    assert _asked(ready) == ["one\ntwo"]


def test_history_is_kept_between_sessions(home: Home, ready: FakeFront) -> None:
    first = Terminal(home)
    first.ask("remember me")
    first.expect("REMEMBER ME")
    assert first.leave() == 0
    second = Terminal(home)
    second.ask("\x1b[A")
    second.expect("REMEMBER ME")
    assert second.leave() == 0
    assert home.paths.history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_session(terminal: Terminal, ready: FakeFront) -> None:
    terminal.ask("slow")
    terminal.expect("0 1 2 ")
    terminal.child.send(CTRL_C)
    terminal.ask("count")
    terminal.expect("3 messages")
    wait_for(lambda: "disconnected" in [entry["path"] for entry in ready.requests()])
    assert terminal.leave() == 0


def test_ctrl_c_on_an_empty_line_tells_how_to_leave_and_a_second_forces(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.child.send("half a line")
    terminal.expect("half a line")
    terminal.child.send(CTRL_C)
    terminal.expect(PROMPT)
    terminal.child.send(CTRL_C)
    terminal.expect("Type /bye or press Ctrl-D to leave")
    terminal.expect(PROMPT)
    terminal.child.send(CTRL_C)
    assert terminal.ended() == 130


def test_a_question_between_two_ctrl_c_disarms(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.child.send(CTRL_C)
    terminal.expect("Type /bye")
    terminal.ask("hello")
    terminal.expect("HELLO")
    terminal.expect(PROMPT)
    terminal.child.send(CTRL_C)
    terminal.expect("Type /bye")
    assert terminal.leave() == 0


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [("fail", "The model's process was killed."), ("die", "ended in the middle of its answer")],
)
def test_a_worker_killed_under_the_repl(terminal: Terminal, prompt: str, sentence: str) -> None:
    terminal.ask(prompt)
    terminal.expect(sentence)
    terminal.ask("still there")
    terminal.expect("STILL THERE")
    assert terminal.leave() == 0


def test_settings_and_statistics(terminal: Terminal, ready: FakeFront) -> None:
    terminal.ask("/stats")
    terminal.expect("No answer yet.")
    terminal.ask("/set temperature 0.5")
    terminal.expect("temperature is 0.5.")
    terminal.ask("/set top-k 4")
    terminal.expect("top-k is 4.")
    terminal.ask("/set system Be kind.")
    terminal.expect("The system prompt is set.")
    terminal.ask("/think off")
    terminal.expect("Thinking is off.")
    terminal.ask("hi")
    terminal.expect("HI")
    terminal.ask("/stats")
    terminal.expect("7 tokens, 100.0 tokens/s")
    terminal.ask("/show")
    terminal.expect("temperature 0.7, top_p 0.9")
    terminal.expect("Be kind.")
    assert terminal.leave() == 0
    body = ready.requests("/v1/chat/completions")[0]
    assert (body["temperature"], body["top_k"]) == (0.5, 4)
    assert body["messages"][0]["content"] == "Be kind."
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/stat", "Did you mean /stats?"),
        ("/set temperature hot", "'hot' is not a number."),
        ("/set top_p 2", "2 is outside 0 to 1."),
        ("/set nonsense 1", "'nonsense' is no parameter."),
        ("/set", "/set takes a name and a value."),
        ("/resize", "/resize takes kv VALUE"),
        ("/resize kv 32q", "'32q' is not a KV budget"),
        ("/load nowhere", "There is no session nowhere."),
        ("/save", "/save takes a name or a file."),
        ("/save two words", "'two words' cannot be the name of a session."),
        ("/load nowhere.json", "There is no file nowhere.json."),
        ("/save /nowhere/chat.json", "/nowhere/chat.json cannot be written: No such file"),
        ("/think maybe", "/think takes on, off or auto."),
        ("/?", "/set NAME VALUE"),
        ("/?", "/set system TEXT"),
        ("/?", "/set greedy"),
        ("/?", "/set verbose|quiet"),
        ("/help", "/bye"),
    ],
)
def test_a_wrong_command_is_told_and_the_session_goes_on(terminal: Terminal, line: str, answer: str) -> None:
    terminal.ask(line)
    terminal.expect(answer)
    assert terminal.leave() == 0


@pytest.mark.parametrize("content", [b"", b"[" * 200_000, b"\xff\xfe", b"{}", b'{"format": "freetoken-conversation"}'])
def test_a_file_that_is_no_conversation_leaves_the_one_there_is(terminal: Terminal, home: Home, content: bytes) -> None:
    (home.folder / "odd.json").write_bytes(content)
    terminal.ask("first words")
    terminal.expect("FIRST WORDS")
    terminal.ask("/load odd.json")
    terminal.expect("odd.json is not a")
    terminal.ask("count")
    terminal.expect("3 messages")
    assert terminal.leave() == 0


def test_resize_then_ask_keeps_the_new_size(home: Home, ready: FakeFront) -> None:
    terminal = Terminal(home, "--kv", "8k")
    terminal.ask("/resize kv 32k")
    terminal.expect("8k (7.81 MiB) → 32k (31.2 MiB)")
    terminal.ask("hi")
    terminal.expect("HI")
    assert terminal.leave() == 0
    assert [load["kv_tokens"] for load in ready.requests("/control/load")][-1] == 32768


def test_save_and_load(terminal: Terminal, home: Home) -> None:
    terminal.ask("first words")
    terminal.expect("FIRST WORDS")
    terminal.ask("/save talk.json")
    terminal.expect("Saved 2 messages to talk.json.")
    terminal.expect("Saved its context: 32 tokens, 4.00 KiB.")
    terminal.ask("/clear")
    terminal.ask("/load talk.json")
    terminal.expect("Loaded 2 messages from talk.json.")
    terminal.expect("Restored the context: 16 tokens of 32, for which there is no room.")
    terminal.ask("count")
    terminal.expect("3 messages")
    assert terminal.leave() == 0
    assert (home.folder / "talk.json.context").read_text() == "demo"
    talk = home.folder / "talk.json"
    assert talk.stat().st_mode & 0o077 == 0
    saved = json.loads(talk.read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]


def test_an_emptied_conversation_leaves_no_context_behind(terminal: Terminal, home: Home) -> None:
    terminal.ask("first words")
    terminal.expect("FIRST WORDS")
    terminal.ask("/save talk.json")
    terminal.expect("Saved its context: 32 tokens")
    terminal.ask("/clear")
    terminal.ask("/save talk.json")
    terminal.expect("Saved 0 messages to talk.json.")
    assert terminal.leave() == 0
    assert not (home.folder / "talk.json.context").exists()


def test_a_session_that_another_process_holds_is_not_written_over(terminal: Terminal, home: Home) -> None:
    with SavedSession.named(home.paths.sessions, "ada").held():
        terminal.ask("/save ada")
        terminal.expect("Another process goes on with the session ada")
    terminal.ask("/save ada")
    terminal.expect("Saved 0 messages to ada.")
    assert terminal.leave() == 0


def test_its_own_session_can_be_saved_at_any_time(home: Home, ready: FakeFront) -> None:
    terminal = Terminal(home, "--session", "ada")
    terminal.ask("first words")
    terminal.expect("FIRST WORDS")
    terminal.ask("/save ada")
    terminal.expect("Saved 2 messages to ada.")
    assert terminal.leave() == 0


def test_bye_leaves(terminal: Terminal) -> None:
    terminal.ask("/bye")
    assert terminal.ended() == 0


def test_sigterm_leaves_the_terminal_and_the_program(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.child.kill(signal.SIGTERM)
    assert terminal.ended() == 143


def test_no_colour_when_asked(home: Home, ready: FakeFront) -> None:
    terminal = Terminal(home, "--no-color")
    terminal.expect("demo on cpu")
    assert "\x1b[2m" not in terminal.child.before
    terminal.child.close(force=True)
