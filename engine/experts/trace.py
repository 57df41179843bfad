"""Routing traces: which experts each token was routed to, in every MoE layer. JSON lines, gzipped or not.

The first line is the header: `{"format": "freetoken-trace", "version": 1, "model": ..., "moe_layers": L, "experts": E,
"top_k": k, "origin": "recorded" | "synthetic"}`, with `"record_bytes"` where the size of an expert's record is known.
Then comes a line a token, in order: `{"request": ..., "phase": "prefill" | "decode", "experts": [[k ids] x L]}`; the
ids of a row differ from each other. Synthetic is what did not come from a trained model: nothing follows from its
locality.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.untrusted import Table, open_regular, parse_object

FORMAT = "freetoken-trace"
VERSION = 1
PREFILL, DECODE = PHASES = ("prefill", "decode")
RECORDED, SYNTHETIC = ORIGINS = ("recorded", "synthetic")
TYPICAL_RECORD = 3 * 2048 * 512 * 9 // 16
"""Bytes of an expert of Qwen3.6-35B-A3B at 4.5 bits a weight, which are taken for a trace that tells none."""
_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE = 64 << 20
_MOST_LAYERS, _MOST_EXPERTS, _MOST_RECORD = 1 << 12, 1 << 16, 1 << 40
_AGAIN = "Record it again: freetoken bench MODEL --trace FILE"


@dataclass(frozen=True)
class TraceHeader:
    """What a trace is of. `record_bytes` is 0 where nobody said how large an expert is."""

    model: str
    moe_layers: int
    experts: int
    top_k: int
    origin: str
    record_bytes: int = 0

    @property
    def pool(self) -> int:
        """Experts of all layers together."""
        return self.moe_layers * self.experts

    def line(self) -> str:
        """The first line of a file, without its end."""
        known = {"record_bytes": self.record_bytes} if self.record_bytes else {}
        fields = {"model": self.model, "moe_layers": self.moe_layers, "experts": self.experts, "top_k": self.top_k}
        return json.dumps({"format": FORMAT, "version": VERSION, **fields, "origin": self.origin, **known})

    @staticmethod
    def parse(line: bytes, where: str) -> TraceHeader:
        """The header in `line`. CorruptFileError for what is none, UnsupportedError for one of another version."""
        table = Table(parse_object(line, where), where)
        if "format" not in table or table.raw()["format"] != FORMAT:
            raise CorruptFileError(f"{where} does not say that it is a {FORMAT}.", _AGAIN)
        if table.raw().get("version") != VERSION:
            version = table.raw().get("version")
            raise UnsupportedError(
                f"{where}: the trace has version {version!a:.20}; this release reads version {VERSION}.", _AGAIN
            )
        experts = table.integer("experts", 1, _MOST_EXPERTS)
        origin = table.text("origin")
        if origin not in ORIGINS:
            raise CorruptFileError(f"{where}: origin is {origin!a:.60}, neither {RECORDED} nor {SYNTHETIC}.")
        return TraceHeader(
            table.text("model"),
            table.integer("moe_layers", 1, _MOST_LAYERS),
            experts,
            table.integer("top_k", 1, experts),
            origin,
            table.integer("record_bytes", 1, _MOST_RECORD) if "record_bytes" in table else 0,
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace in memory.

    experts: int32 [tokens, moe_layers, top_k]. decode: bool [tokens], False for prefill. request: int32 [tokens], an
    index into `requests`. cut: what is missing at the end, "" for nothing.
    """

    header: TraceHeader
    experts: NDArray[np.int32]
    decode: NDArray[np.bool_]
    request: NDArray[np.int32]
    requests: tuple[str, ...]
    cut: str = ""


def read_trace(path: Path, partial: bool = False) -> Trace:
    """The trace at `path`, every line checked.

    A file that ends in mid-line or in mid-stream, since its writer was killed, is refused unless `partial` asks for
    what is there; `cut` then says what is not. Errors: NotFoundError, CorruptFileError, UnsupportedError, each with the
    file and the line.
    """
    try:
        with _lines(path) as lines:
            header, tokens, cut = _parse(lines, path, partial)
    except NotFoundError as error:
        raise NotFoundError(error.message, error.remedy or "Record one: freetoken bench MODEL --trace FILE") from error
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or _AGAIN) from error
    requests: dict[str, int] = {}
    for request, _, _ in tokens:
        requests.setdefault(request, len(requests))
    shape = (len(tokens), header.moe_layers, header.top_k)
    rows = [row for _, _, row in tokens]
    return Trace(
        header,
        np.stack(rows) if rows else np.empty(shape, np.int32),
        np.array([phase == DECODE for _, phase, _ in tokens], bool),
        np.array([requests[request] for request, _, _ in tokens], np.int32),
        tuple(requests),
        cut,
    )


_Token = tuple[str, str, NDArray[np.int32]]


def _parse(lines: Iterator[bytes], path: Path, partial: bool) -> tuple[TraceHeader, list[_Token], str]:
    try:
        header = TraceHeader.parse(next(lines, b""), f"{path}, line 1")
    except _CutError as error:
        raise CorruptFileError(f"{path} is cut short in its first line: {error}.", _AGAIN) from None
    tokens: list[_Token] = []
    number = 1
    try:
        for number, line in enumerate(lines, start=2):
            where = f"{path}, line {number}"
            if line.endswith(b"\n"):
                tokens.append(_token(line, where, header))
            else:  # the last line of a file whose writer was stopped, or that somebody wrote by hand
                tokens.append(_last_token(line, where, header))
    except _CutError as error:
        message = f"{path} is cut short after {len(tokens)} tokens: {error}."
        if not partial:
            raise CorruptFileError(message, f"--partial uses the tokens that are there. {_AGAIN}") from None
        return header, tokens, message
    return header, tokens, ""


class _CutError(Exception):
    """A file that ends too early."""


def _last_token(line: bytes, where: str, header: TraceHeader) -> _Token:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        raise _CutError("it ends in the middle of a line") from None
    return _token(line, where, header)


def _token(line: bytes, where: str, header: TraceHeader) -> _Token:
    table = Table(parse_object(line, where), where)
    phase = table.text("phase")
    if phase not in PHASES:
        raise CorruptFileError(f"{where}: phase is {phase!a:.60}, neither {PREFILL} nor {DECODE}.")
    rows = table.items("experts")
    experts = (
        None if b"true" in line or b"false" in line else _plain_rows(rows, header)
    )  # numpy takes those for numbers
    if experts is None:
        _check_rows(rows, where, header)
        experts = np.array(rows, np.int32)
    return table.text("request"), phase, experts


def _plain_rows(rows: list[object], header: TraceHeader) -> NDArray[np.int32] | None:
    """The rows of a token that is as it should be; None for `_check_rows` to find out what is wrong with it."""
    try:
        experts = np.array(rows)
    except (ValueError, OverflowError):
        return None
    if experts.dtype != np.int64 or experts.shape != (header.moe_layers, header.top_k):
        return None
    ordered = np.sort(experts, axis=1)
    if ordered[:, 0].min() < 0 or ordered[:, -1].max() >= header.experts or (np.diff(ordered, axis=1) == 0).any():
        return None
    return experts.astype(np.int32)


def _check_rows(rows: list[object], where: str, header: TraceHeader) -> None:
    if len(rows) != header.moe_layers:
        raise CorruptFileError(f"{where} has experts for {len(rows)} layers, not for {header.moe_layers}.")
    for layer, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != header.top_k:
            found = f"{len(row)} experts" if isinstance(row, list) else "no list"
            raise CorruptFileError(f"{where}: layer {layer} has {found} where a token has {header.top_k}.")
        for expert in row:
            if type(expert) is not int or not 0 <= expert < header.experts:
                raise CorruptFileError(
                    f"{where}: layer {layer} has expert {expert!a:.40}; there are 0 to {header.experts - 1}."
                )
        if len(set(row)) != header.top_k:
            raise CorruptFileError(f"{where}: layer {layer} has the same expert twice.")


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file, unpacked if it is gzipped, each with its end."""
    with os.fdopen(open_regular(path), "rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield _read_lines(cast(BinaryIO, unpacked), path)
        else:
            yield _read_lines(file, path)


def _read_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    number = 0
    while True:
        try:
            line = file.readline(_LONGEST_LINE)
        except EOFError:
            raise _CutError("its gzip stream has no end") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise CorruptFileError(f"{path} is damaged: {error}.", _AGAIN) from None
        except OSError as error:
            raise CorruptFileError(f"{path} cannot be read: {error.strerror or error}.") from None
        if not line:
            return
        number += 1
        if len(line) == _LONGEST_LINE:
            raise CorruptFileError(f"{path}, line {number} is longer than any token's.")
        yield line


class TraceWriter:
    """Writes a trace token by token; gzipped if the name ends in `.gz`.

    What was written before `flush`, which happens by itself every so many tokens, survives a kill; `read_trace` tells
    what was lost. OSError when the disk is full or the place cannot be written, with the file's name.
    """

    FLUSH_EVERY = 32  # tokens

    def __init__(self, path: Path, header: TraceHeader, name: str = "") -> None:
        """`name` is the one that the file will have; "" for that of `path`."""
        self._header = header
        self._path = path
        self._raw = open(path, "wb")  # noqa: SIM115 - closed by close()
        # mtime=0: the same tokens give the same file
        self._file: BinaryIO = self._raw
        name = name or path.name
        if name.endswith(".gz"):
            self._file = cast(BinaryIO, gzip.GzipFile(name[:-3], "wb", 6, self._raw, mtime=0))
        self._unflushed = 0
        self._write(header.line())
        self.flush()

    def token(self, request: str, phase: str, experts: Sequence[Sequence[int]] | NDArray[np.int32]) -> None:
        """Add a token: the ids of each MoE layer, in their order, `top_k` of them."""
        rows = np.asarray(experts, np.int32)
        assert rows.shape == (self._header.moe_layers, self._header.top_k), f"experts of shape {rows.shape}"
        assert phase in PHASES, phase
        self._write(json.dumps({"request": request, "phase": phase, "experts": rows.tolist()}, separators=(",", ":")))
        self._unflushed += 1
        if self._unflushed >= self.FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Hand all tokens so far to the system."""
        with self._naming():
            self._file.flush()
            self._raw.flush()
        self._unflushed = 0

    def close(self) -> None:
        """Finish the file."""
        with self._naming():
            try:
                if self._file is not self._raw:
                    self._file.close()
            finally:
                self._raw.close()

    def _write(self, text: str) -> None:
        with self._naming():
            self._file.write(f"{text}\n".encode())

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
