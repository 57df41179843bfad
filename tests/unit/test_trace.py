"""Traces: what is written is read back, what is not a trace is refused with the file and the line."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, FreetokenError, NotFoundError, UnsupportedError
from engine.experts.trace import DECODE, PREFILL, SYNTHETIC, TraceHeader, TraceWriter, read_trace

HEADER = TraceHeader("tiny", 2, 4, 2, SYNTHETIC)
TOKEN = {"request": "a", "phase": "decode", "experts": [[0, 1], [3, 2]]}


def _write(path: Path, *tokens: object, header: object = None) -> Path:
    first = HEADER.line() if header is None else json.dumps(header)
    path.write_text("\n".join([first, *(t if isinstance(t, str) else json.dumps(t) for t in tokens)]) + "\n")
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    chance = np.random.default_rng(0)
    header = TraceHeader("modèle", 3, 300, 4, SYNTHETIC, 4096)
    rows = np.stack([[chance.permutation(300)[:4] for _ in range(3)] for _ in range(100)])
    with TraceWriter(path, header) as writer:
        for i, row in enumerate(rows):
            writer.token(f"r{i // 10}", PREFILL if i % 10 < 3 else DECODE, row)
    trace = read_trace(path)
    assert trace.header == header
    assert trace.cut == ""
    np.testing.assert_array_equal(trace.experts, rows)
    assert trace.requests == tuple(f"r{i}" for i in range(10))
    assert trace.request.tolist() == [i // 10 for i in range(100)]
    assert trace.decode.tolist() == [i % 10 >= 3 for i in range(100)]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_gzip_is_told_by_its_bytes_and_not_by_the_name(tmp_path: Path) -> None:
    plain = _write(tmp_path / "plain.gz", TOKEN)
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_trace(plain).experts.tolist() == read_trace(packed).experts.tolist() == [[[0, 1], [3, 2]]]


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    path = _write(tmp_path / "t", TOKEN)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(read_trace(path).experts) == 1


def test_the_same_tokens_give_the_same_file(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with TraceWriter(tmp_path / folder / "t.gz", HEADER) as writer:
            writer.token("r", DECODE, [[0, 1], [2, 3]])
    assert (tmp_path / "a/t.gz").read_bytes() == (tmp_path / "b/t.gz").read_bytes()


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_killed_writer_leaves_what_it_flushed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    code = (
        "import sys; from pathlib import Path\n"
        "from engine.experts.trace import *\n"
        "writer = TraceWriter(Path(sys.argv[1]), TraceHeader('tiny', 2, 4, 2, SYNTHETIC))\n"
        "for i in range(1000): writer.token('r', DECODE, [[0, 1], [2, 3]])\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"written\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    trace = read_trace(path, partial=True)
    assert 1000 - TraceWriter.FLUSH_EVERY <= len(trace.experts) <= 1000
    if name.endswith(".gz"):
        assert f"cut short after {len(trace.experts)} tokens" in trace.cut
        with pytest.raises(CorruptFileError, match="cut short") as caught:
            read_trace(path)
        assert "--partial" in caught.value.remedy


@given(data=st.data())
def test_a_file_cut_anywhere_is_a_sentence_or_a_shorter_trace(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = folder / data.draw(st.sampled_from(["t", "t.gz"]))
    with TraceWriter(path, HEADER) as writer:
        for _ in range(5):
            writer.token("r", DECODE, [[0, 1], [2, 3]])
            writer.flush()
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    for partial in (False, True):
        try:
            trace = read_trace(path, partial)
        except FreetokenError as error:
            assert str(path) in error.message  # noqa: PT017 - either outcome is right
        else:
            assert len(trace.experts) <= 5
            assert bool(trace.cut) or not partial or path.suffix != ".gz"


@given(content=st.binary(max_size=200), packed=st.booleans(), headed=st.booleans())
def test_noise_is_a_sentence(
    content: bytes, packed: bool, headed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("noise") / "t"
    content = HEADER.line().encode() + b"\n" + content if headed else content
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        trace = read_trace(path)
    except FreetokenError as error:
        assert str(path) in error.message  # noqa: PT017 - either outcome is right
    else:
        assert headed
        assert len(trace.experts) == 0


@pytest.mark.parametrize("at", [12, 40, -6, -2])
def test_a_flipped_byte_in_a_gzip_is_a_sentence(tmp_path: Path, at: int) -> None:
    path = tmp_path / "t.gz"
    content = bytearray(gzip.compress(_write(tmp_path / "t", *[TOKEN] * 50).read_bytes()))
    content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"t\.gz"):
        read_trace(path)


FIELDS = json.loads(HEADER.line())


@pytest.mark.parametrize(
    ("header", "kind", "says"),
    [
        ({}, CorruptFileError, "freetoken-trace"),
        ([], CorruptFileError, "not a JSON object"),
        ({**FIELDS, "format": "other"}, CorruptFileError, "freetoken-trace"),
        ({**FIELDS, "version": 2}, UnsupportedError, "version 2"),
        ({**FIELDS, "version": "1"}, UnsupportedError, "version '1'"),
        ({**FIELDS, "moe_layers": 0}, CorruptFileError, "moe_layers"),
        ({**FIELDS, "experts": "4"}, CorruptFileError, "experts"),
        ({**FIELDS, "top_k": 5}, CorruptFileError, "top_k"),
        ({**FIELDS, "top_k": True}, CorruptFileError, "top_k"),
        ({**FIELDS, "origin": "guessed"}, CorruptFileError, "origin"),
        ({**FIELDS, "model": None}, CorruptFileError, "model"),
        ({**FIELDS, "record_bytes": -1}, CorruptFileError, "record_bytes"),
        ({k: v for k, v in FIELDS.items() if k != "top_k"}, CorruptFileError, "top_k"),
    ],
    ids=str,
)
def test_a_header_that_is_none_is_refused(
    tmp_path: Path, header: object, kind: type[FreetokenError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        read_trace(_write(tmp_path / "t", TOKEN, header=header))
    assert "line 1" in caught.value.message


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("{", "not valid JSON"),
        ("", "empty"),
        ("[1]", "not a JSON object"),
        ('{"request": "a", "request": "b"}', "twice"),
        ({**TOKEN, "phase": "training"}, "training"),
        ({**TOKEN, "phase": 1}, "phase"),
        ({**TOKEN, "request": 7}, "request"),
        ({"phase": "decode", "experts": [[0, 1], [3, 2]]}, "request"),
        ({**TOKEN, "experts": [[0, 1]]}, "1 layers, not for 2"),
        ({**TOKEN, "experts": {}}, "not a list"),
        ({**TOKEN, "experts": [[0, 1], [2]]}, "layer 1 has 1 experts"),
        ({**TOKEN, "experts": [[0, 1], 5]}, "layer 1 has no list"),
        ({**TOKEN, "experts": [[0, 4], [1, 2]]}, "expert 4; there are 0 to 3"),
        ({**TOKEN, "experts": [[0, -1], [1, 2]]}, "expert -1"),
        ({**TOKEN, "experts": [[0, 1.0], [1, 2]]}, "expert 1.0"),
        ({**TOKEN, "experts": [[0, True], [1, 2]]}, "expert True"),
        ({**TOKEN, "experts": [[0, 1], [2, 2]]}, "layer 1 has the same expert twice"),
        ({**TOKEN, "experts": [[0, 10**40], [2, 2]]}, "expert 1000"),
    ],
    ids=str,
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: object, says: str) -> None:
    with pytest.raises(CorruptFileError, match=says) as caught:
        read_trace(_write(tmp_path / "t", TOKEN, token, TOKEN))
    assert "line 3" in caught.value.message


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_trace(tmp_path / "absent")
    with pytest.raises(CorruptFileError, match="not a regular file"):
        read_trace(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(CorruptFileError, match="empty"):
        read_trace(tmp_path / "empty")


def test_a_header_alone_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t"))
    assert trace.experts.shape == (0, 2, 2)
    assert trace.requests == ()


def test_a_full_disk_names_the_file() -> None:
    writer = TraceWriter(Path("/dev/null"), HEADER)
    writer.close()
    with pytest.raises(OSError, match="/dev/full"):
        TraceWriter(Path("/dev/full"), HEADER)
