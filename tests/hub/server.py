"""A Hub on loopback that answers as the real one does, and misbehaves as it is told to.

The list of a repository's files carries sizes, git hashes and for large files sha256; large files are answered with a
redirect to another host name, small ones directly. Ranges are honoured.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_LARGE = 2048  # bytes from which a file is in large-file storage
_BLOCK = 16 << 10


@dataclass
class Fault:
    """What happens to the next `times` requests for a path that contains `path`.

    `after` bytes of an answer (of its body, not of the file) the connection is dropped, or the server sleeps for
    `sleep` seconds and goes on. `flip` is a byte of the file that is inverted, `change` a place and what is there
    instead. `short` ends an answer, correctly as far as HTTP goes, so many bytes early. `status` answers with an error.
    """

    path: str
    times: int = 1
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    sleep_after: int | None = None
    sleep: float = 0.0
    flip: int | None = None
    change: tuple[int, bytes] | None = None
    short: int = 0
    empty: bool = False
    ignore_range: bool = False
    content_range: str = ""
    body: bytes | None = None


@dataclass(frozen=True)
class Request:
    """What was asked: the path, the range header, and whether the token came along."""

    host: str
    path: str
    range: str
    authorised: bool


class _Server(ThreadingHTTPServer):
    """One that takes its open connections along when it goes, as a process that dies does."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error."""

    def die(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class HubServer:
    """Repositories by id, each a list of commits; `refs` names one of them. A context manager."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.bytes_a_second: float = 0.0
        self.sent = 0  # bytes of answers
        self.lock = threading.Lock()
        self._server: _Server | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage(self) -> str:
        """Where large files are: the same server under another name, which is another host to every client."""
        return f"http://localhost:{self._port}"

    def add(self, repo: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """A new commit, which `revision` means from now on; returns it."""
        commits = self.repos.setdefault(repo, {})
        commit = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits[commit] = dict(files)
        self.refs.setdefault(repo, {})[revision] = commit
        return commit

    def asked(self, path: str) -> list[Request]:
        """The requests for paths that contain `path`."""
        with self.lock:
            return [request for request in self.requests if path in request.path]

    def start(self) -> None:
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()

    def stop(self) -> None:
        """Goes away; `start` comes back at the same port."""
        if self._server is not None:
            self._server.die()
            self._server = None

    def __enter__(self) -> HubServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def fault(self, path: str) -> Fault:
        """The fault that is due for a request, used up once."""
        with self.lock:
            for fault in self.faults:
                if fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return Fault("")

    def resolve(self, repo: str, revision: str) -> str | None:
        commits = self.repos.get(repo, {})
        return revision if revision in commits else self.refs.get(repo, {}).get(revision)


def describe(repo: str, commit: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The answer about a repository, as `/api/models` gives it."""
    siblings = []
    for path, content in sorted(files.items()):
        entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git_sha1(content)}
        if len(content) >= _LARGE:
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 135}
        siblings.append(entry)
    return {"id": repo, "modelId": repo, "sha": commit, "private": False, "gated": False, "siblings": siblings}


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server_of: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body that follows its head would wait for an answer that waits for it

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server_of
        path = unquote(urlsplit(self.path).path)
        request = Request(
            self.headers.get("host", ""),
            path,
            self.headers.get("range", ""),
            "authorization" in self.headers,
        )
        with hub.lock:
            hub.requests.append(request)
        fault = hub.fault(path)
        if fault.status:
            self._error(fault.status, fault.headers)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._describe(match[1], match[2], fault)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[2], match[3], fault)
        elif match := re.fullmatch(r"/storage/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            self._send(hub.repos[match[1]][match[2]][match[3]], fault, {})
        else:
            self._error(404, {})

    def _describe(self, repo: str, revision: str, fault: Fault) -> None:
        commit = self.server_of.resolve(repo, revision)
        if repo not in self.server_of.repos:
            self._error(401, {"X-Error-Message": "Invalid username or password."})
        elif commit is None:
            self._error(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            text = json.dumps(describe(repo, commit, self.server_of.repos[repo][commit])).encode()
            self._send(text if fault.body is None else fault.body, fault, {"Content-Type": "application/json"})

    def _file(self, repo: str, revision: str, path: str, fault: Fault) -> None:
        commit = self.server_of.resolve(repo, revision)
        content = self.server_of.repos.get(repo, {}).get(commit or "", {}).get(path)
        if commit is None or content is None:
            self._error(404, {"X-Error-Code": "EntryNotFound" if commit else "RepoNotFound"})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'}
        if len(content) < _LARGE:
            self._send(content, fault, headers)
            return
        sha256 = hashlib.sha256(content).hexdigest()
        self.send_response(302)
        self.send_header("Location", f"{self.server_of.storage}/storage/{repo}/{commit}/{path}")
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("X-Linked-Etag", f'"{sha256}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _error(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, fault: Fault, headers: Mapping[str, str]) -> None:
        if fault.flip is not None:
            content = content[: fault.flip] + bytes([content[fault.flip] ^ 0xFF]) + content[fault.flip + 1 :]
        if fault.change is not None:
            place, instead = fault.change
            content = content[:place] + instead + content[place + len(instead) :]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        start, stop = 0, len(content)
        if asked and not fault.ignore_range:
            start, stop = int(asked[1]), min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
            self.send_response(206)
            self.send_header("Content-Range", fault.content_range or f"bytes {start}-{stop - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = b"" if fault.empty else content[start : stop - fault.short]
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for block in self._paced(body, fault):
                self.wfile.write(block)
                with self.server_of.lock:
                    self.server_of.sent += len(block)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _paced(self, body: bytes, fault: Fault) -> Iterator[bytes]:
        """The body in pieces, with what the fault wants in between."""
        marks = {mark for mark in (fault.drop_after, fault.sleep_after) if mark is not None}
        edges = sorted({*range(0, len(body), _BLOCK), *marks, len(body)})
        for start, stop in itertools.pairwise(edges):
            if start == fault.drop_after:
                self.close_connection = True
                return
            if start == fault.sleep_after:
                self.wfile.flush()
                time.sleep(fault.sleep)
            if self.server_of.bytes_a_second:
                time.sleep((stop - start) / self.server_of.bytes_a_second)
            yield body[start:stop]
