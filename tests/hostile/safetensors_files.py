"""Safetensors files that lie: name, content, and what the error must say."""

from __future__ import annotations

import json
from typing import Any


def file(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """A file with this header; `length` is what it claims the header's length to be."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(start: int, stop: int, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


SAFETENSORS_FILES = {
    "nothing": (b"", "too short"),
    "seven bytes": (bytes(7), "too short"),
    "a pointer of git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 9\n", "only a pointer"),
    "a header longer than the file": (file({}, b"", 4096), "short"),
    "a header longer than any": (file({}, b"", 1 << 63), "not a safetensors file"),
    "no JSON": (file(b"{nonsense"), "not valid JSON"),
    "no UTF-8": (file(b'{"\xff\xfe": 1}'), "not valid JSON"),
    "a list": (file([]), "not a JSON object"),
    "endless nesting": (file(b"[" * 100_000), "not valid JSON"),
    "an endless number": (file(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "NaN": (file(b'{"a": NaN}'), "NaN"),
    "a name twice": (file(b'{"a": {}, "a": {}}'), "twice"),
    "a tensor that is a number": (file({"a": 3}), "not an object"),
    "a tensor without a type": (file({"a": {"shape": [1], "data_offsets": [0, 4]}}), "lacks 'dtype'"),
    "an unknown type": (file({"a": tensor(0, 8, "F77")}), "unknown type"),
    "a type that is a number": (file({"a": tensor(0, 8, 5)}), "not a string"),
    "a negative dimension": (file({"a": tensor(0, 8, shape=(-2,))}), "shape holds -2"),
    "a dimension that is a fraction": (file({"a": tensor(0, 8, shape=(2.0,))}), "shape holds 2.0"),
    "a dimension that is true": (file({"a": tensor(0, 4, shape=(True,))}), "shape holds True"),
    "dimensions beyond all bounds": (file({"a": tensor(0, 8, shape=(1 << 39, 1 << 39))}), "needs"),
    "one offset": (file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}), "1 offsets"),
    "offsets in the wrong order": (file({"a": tensor(8, 0)}), "holds -8 bytes"),
    "a size that is not the shape's": (file({"a": tensor(0, 16)}), "needs 8"),
    "a hole": (file({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20)), "a hole"),
    "a hole at the start": (file({"a": tensor(8, 16)}), "a hole"),
    "an overlap": (file({"a": tensor(0, 8), "b": tensor(4, 12)}), "an overlap"),
    "data beyond the end": (file({"a": tensor(0, 8)}, bytes(4)), "short"),
    "bytes that belong to nobody": (file({"a": tensor(0, 8)}, bytes(9)), "belong to no tensor"),
}
