"""Contexts of loaded models saved through the control socket, and restored into workers that never computed them."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import engine.front
from engine.text.text import Text
from tests.server.running_front import RunningFront, eventually, start_front
from tests.turns.scripts import Message
from tests.turns.served import Talker, make_store

KINDS = ("attention", "delta-net", "window")
PAGE = 16
TALK: list[Message] = [
    {"role": "system", "content": "You speak of rivers and of nothing else, in short sentences, and never twice."},
    {"role": "user", "content": "Which river is the longest of all, and which carries most water to the sea?"},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("contexts"), KINDS)


@pytest.fixture(scope="module")
def front(served: Path) -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(served, Path(folder), script=Path(engine.front.__path__[0]) / "__main__.py")
        yield running
        assert running.stop() == 0


@pytest.fixture
def talker(front: RunningFront, served: Path) -> Callable[[str], Talker]:
    """A talker to a model that has forgotten everything."""

    def cold(kind: str) -> Talker:
        found = Talker(front, kind, Text.load(served / kind))
        found.front.control("load", model=kind, defaults={})
        found.cold()
        return found

    return cold


def said(talker: Talker, messages: Sequence[Message]) -> tuple[list[Message], int, Sequence[float]]:
    """The conversation with one more answer, what was reused for it, and its log probabilities."""
    answer, _, scores, reused = talker.ask(messages, False)
    return [*messages, {"role": "assistant", "content": answer}], reused, scores


def more(messages: Sequence[Message]) -> list[Message]:
    return [*messages, {"role": "user", "content": "And the second?"}]


def save(talker: Talker, messages: Sequence[Message], path: Path) -> dict[str, Any]:
    return talker.front.control("save", model=talker.model, messages=list(messages), path=str(path))


def restore(talker: Talker, path: Path) -> dict[str, Any]:
    return talker.front.control("restore", model=talker.model, path=str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_context_is_reused_and_changes_no_bit(
    talker: Callable[[str], Talker], kind: str, tmp_path: Path
) -> None:
    talking = talker(kind)
    talk, _, _ = said(talking, TALK)
    known = len(talking.text.render(talk, add_generation_prompt=False).ids)
    path = tmp_path / "talk.context"
    saved = save(talking, talk, path)
    assert known - 2 * PAGE < saved["tokens"] <= known
    assert saved["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600

    talking.cold()
    computed, reused, exact = said(talking, more(talk))
    assert reused == 0
    talking.cold()
    assert restore(talking, path) == {"tokens": saved["tokens"], "total": saved["tokens"]}
    again, reused, scores = said(talking, more(talk))
    assert reused == saved["tokens"]
    assert again == computed
    assert scores == exact
    assert os.listdir(tmp_path) == ["talk.context"]


def test_what_is_there_already_is_not_restored_twice(talker: Callable[[str], Talker], tmp_path: Path) -> None:
    for kind in KINDS:
        talking = talker(kind)
        talk, _, _ = said(talking, TALK)
        saved = save(talking, talk, tmp_path / kind)
        held = talking.front.stats(kind)["kv_tokens_cached"]
        assert restore(talking, tmp_path / kind)["tokens"] == saved["tokens"]
        assert talking.front.stats(kind)["kv_tokens_cached"] == held
        _, reused, _ = said(talking, more(talk))
        assert reused >= saved["tokens"]


def test_an_edited_conversation_goes_on_from_an_earlier_checkpoint(
    talker: Callable[[str], Talker], tmp_path: Path
) -> None:
    talking = talker("delta-net")
    talk, _, _ = said(talking, TALK)
    save(talking, talk, tmp_path / "talk")
    edited = [*talk[:1], {"role": "user", "content": "Something else, please."}]
    talking.cold()
    _, _, exact = said(talking, edited)
    talking.cold()
    restore(talking, tmp_path / "talk")
    _, reused, scores = said(talking, edited)
    assert reused >= PAGE, "the edge of the system prompt was saved as well"
    assert scores == exact


def test_every_answer_says_why_no_more_was_reused(talker: Callable[[str], Talker]) -> None:
    def ask(talking: Talker, messages: Sequence[Message]) -> dict[str, Any]:
        answer: Any = talking.front.openai.post(
            "/chat/completions",
            cast_to=object,
            body={"model": talking.model, "messages": list(messages), "max_tokens": 2, "temperature": 0},
        )
        statistics: dict[str, Any] = answer["statistics"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == statistics["reused_tokens"] <= statistics["known_tokens"]
        return statistics

    talking = talker("delta-net")
    first = ask(talking, TALK)
    assert (first["reuse_why"], first["reused_tokens"]) == ("new", 0)
    again = ask(talking, TALK)
    assert again["reuse_why"] == "last"
    assert again["prompt_tokens"] - again["reused_tokens"] <= PAGE
    other = ask(talking, [TALK[0], {"role": "user", "content": "What else?"}])
    assert other["reuse_why"] == "differs"
    assert other["reuse"].startswith(f"what follows its first {other['known_tokens']} was never")
    halfway = ask(talking, [{**TALK[0], "content": TALK[0]["content"][:60]}, TALK[1]])
    assert halfway["reuse_why"] == "state", "nobody saved a state in the middle of a message"
    assert halfway["known_tokens"] >= 60


def test_another_model_is_refused(talker: Callable[[str], Talker], tmp_path: Path) -> None:
    talking = talker("attention")
    talk, _, _ = said(talking, TALK)
    save(talking, talk, tmp_path / "talk")
    error = restore(talker("window"), tmp_path / "talk")["error"]
    assert error["type"] == "UnsupportedError"
    assert "belongs to the model attention, not to window" in error["message"]


def test_nothing_to_save(talker: Callable[[str], Talker], tmp_path: Path) -> None:
    talking = talker("attention")
    error = save(talking, TALK, tmp_path / "talk")["error"]
    assert error["type"] == "NotFoundError"
    assert "not loaded" in error["message"]
    talking.front.control("load", model="attention", defaults={})
    error = save(talking, TALK, tmp_path / "talk")["error"]
    assert "Nothing of this conversation" in error["message"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-1], "damaged: it has"),
        (lambda content: content + b"x", "damaged: it has"),
        (lambda content: content[:100], "ends too early"),
        (lambda content: b"", "ends too early"),
        (lambda content: b"X" + content[1:], "not a saved context"),
        (lambda content: content[:8] + b"\x63" + content[9:], "version 99"),
        (lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:], "header was altered"),
        (lambda content: content[:-60] + bytes([content[-60] ^ 1]) + content[-59:], "a block of it was altered"),
    ],
)
def test_a_damaged_file_is_refused_and_leaves_nothing_behind(
    talker: Callable[[str], Talker], tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    talking = talker("delta-net")
    talk, _, _ = said(talking, TALK)
    path = tmp_path / "talk"
    save(talking, talk, path)
    path.write_bytes(change(path.read_bytes()))
    talking.cold()
    error = restore(talking, path)["error"]
    assert words in error["message"]
    assert error["remedy"]
    assert talking.front.stats("delta-net")["kv_tokens_cached"] == 0
    _, reused, _ = said(talking, more(talk))
    assert reused == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"path": "here"}, "absolute path"),
        ({"path": 7}, "absolute path"),
        ({"path": "/nowhere/at/all"}, "is not there"),
        ({"path": "/dev/null"}, "not a regular file"),
        ({}, "absolute path"),
    ],
)
def test_what_is_no_file_is_refused(front: RunningFront, body: dict[str, Any], words: str) -> None:
    assert words in front.control("restore", model="attention", **body)["error"]["message"]


def test_a_place_that_cannot_be_written_to(talker: Callable[[str], Talker], tmp_path: Path) -> None:
    talking = talker("attention")
    talk, _, _ = said(talking, TALK)
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / ".pipe.partial")
    folders = (tmp_path / "file" / "talk", tmp_path / "none" / "talk", tmp_path, Path("/"))
    for path in (*folders, tmp_path / "pipe", tmp_path / ("x" * 250), tmp_path / ("x" * 5000)):
        error = save(talking, talk, path)["error"]
        assert str(path) in error["message"]
        assert "worker failed" not in error["message"]
    assert sorted(os.listdir(tmp_path)) == [".pipe.partial", "file"]
    assert os.listdir(tmp_path.parent).count(f".{tmp_path.name}.partial") == 0, "its name was taken by a folder"


def test_the_next_save_writes_over_what_a_killed_worker_left(talker: Callable[[str], Talker], tmp_path: Path) -> None:
    talking = talker("attention")
    talk, _, _ = said(talking, TALK)
    save(talking, talk, tmp_path / "talk")
    whole = (tmp_path / "talk").read_bytes()
    (tmp_path / ".talk.partial").write_bytes(whole[:100] * 999)
    save(talking, talk, tmp_path / "talk")
    assert (tmp_path / "talk").read_bytes() == whole
    assert os.listdir(tmp_path) == ["talk"]


def test_a_worker_killed_while_it_saves_leaves_the_old_file_or_the_new_one(
    talker: Callable[[str], Talker], tmp_path: Path
) -> None:
    talking = talker("delta-net")
    for other in {"attention", "window"} & {model["name"] for model in talking.front.control("ps")["models"]}:
        talking.front.control("stop", model=other)
    talk, _, _ = said(talking, TALK)
    path = tmp_path / "talk"
    save(talking, talk, path)
    for seconds in (0.002, 0.004):  # a third crash within a minute would keep the model unloaded
        (worker,) = talking.front.workers()
        saving = threading.Thread(target=save, args=(talking, talk, path))
        killer = threading.Timer(seconds, os.kill, (worker, signal.SIGKILL))
        killer.start()
        saving.start()
        saving.join()
        killer.join()
        assert eventually(lambda: not talking.front.control("ps")["models"], 30)
        assert restore(talking, path)["tokens"] > 0
        talk, _, _ = said(talking, talk[:2])
