"""How a worker's end is told, and sockets that cannot be made."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from engine.base.errors import UsageError
from engine.front.wire.listen import listen_private
from engine.front.workers.process import ending


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (7, "ended with code 7"),
        (-signal.SIGKILL, "was killed (perhaps the machine ran out of memory)"),
        (-signal.SIGBUS, "could not read its model (a file of it was cut short meanwhile, or the disk failed)"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
    ],
)
def test_an_end_is_told_with_its_likely_reason(code: int, words: str) -> None:
    assert ending(code) == words


def test_a_folder_in_the_place_of_the_socket_is_a_sentence(runtime: Path) -> None:
    (runtime / "front.sock" / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"front\.sock cannot be made"):
        listen_private(runtime / "front.sock")


def test_a_dead_fronts_socket_is_replaced(runtime: Path) -> None:
    path = runtime / "front.sock"
    listen_private(path).close()
    assert path.is_socket()
    with listen_private(path) as listener:
        assert listener.getsockname() == str(path)
        assert path.stat().st_mode & 0o077 == 0
