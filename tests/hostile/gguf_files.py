"""GGUF files that lie: name, content, and what the error must say."""

from __future__ import annotations

import struct


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def header(pairs: list[bytes], tensors: list[bytes], version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)


def tensor_info(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    packed_dims = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", len(dims)) + packed_dims + struct.pack("<IQ", kind, offset)


DATA = bytes(256)
GGUF_FILES = {
    "another format": (b"GGML" + bytes(60), "not a GGUF file"),
    "version 9": (header([], [], 9), "version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims"),
    "more metadata than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "claims"),
    "a key longer than the file": (header([struct.pack("<Q", 1 << 62) + bytes(40)], []), "claims"),
    "an array longer than the file": (header([pair("a", 9, struct.pack("<IQ", 4, 1 << 61))], []), "claims"),
    "an array of arrays": (header([pair("a", 9, struct.pack("<IQ", 9, 1) + bytes(40))], []), "array of arrays"),
    "an unknown kind": (header([pair("a", 77, bytes(8))], []), "unknown type 77"),
    "a key twice": (header([pair("a", 4, bytes(4))] * 2, []), "twice"),
    "a key that is no text": (header([struct.pack("<Q", 2) + b"\xff\xfe" + bytes(12)], []), "UTF-8"),
    "a tensor twice": (header([], [tensor_info("a", (4,))] * 2) + DATA, "twice"),
    "no dimension": (header([], [tensor_info("a", ()) + bytes(8)]) + DATA, "0 dimensions"),
    "many dimensions": (header([], [tensor_info("a", (1,) * 9)]) + DATA, "9 dimensions"),
    "an empty tensor": (header([], [tensor_info("a", (4, 0))]) + DATA, "empty"),
    "a tensor beyond the end": (header([], [tensor_info("a", (4,), 0, 4096)]) + DATA, "short"),
    "a tensor beyond 64 bits": (header([], [tensor_info("a", (1 << 63, 1 << 63))]) + DATA, "short"),
    "half a block": (header([], [tensor_info("a", (33,), 2)]) + DATA, "whole blocks"),
    "an overlap": (header([], [tensor_info("a", (8,)), tensor_info("b", (8,), 0, 16)]) + DATA, "overlap"),
    "an odd alignment": (header([pair("general.alignment", 4, struct.pack("<I", 24))], []), "alignment"),
    "no architecture": (header([], []), "architecture"),
}
