"""A front that needs no model: the control requests and the chat stream of docs/design.md, with scripted answers.

`python fake_front.py CONFIG` serves like `engine.front` does. A model called `huge` does not fit, and one called `late`
is loading for a minute. The last user message decides the answer: `slow` streams
for a long time, `fail` sends an error in the stream, `die` drops the connection, `think` thinks first, `count` tells
how many messages came; anything else comes back in capitals, word by word.
"""

from __future__ import annotations

import fcntl
import json
import os
import socketserver
import sys
import time
import tomllib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

# What the front of this release says; FAKE_VERSION makes it one of another.
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
VERSION = os.environ.get("FAKE_VERSION") or PROJECT["version"]
STATE: dict[str, Any] = {
    "name": "demo",
    "size": 93 * 2**20,
    "device": "cpu",
    "device_text": "",
    "device_total": 0,
    "threads": 2,
    "experts": None,
    "expert_slots": None,
    "expert_bytes": None,
    "hit_rate": None,
    "kv_tokens": 8192,
    "kv_bytes": 8192 * 1000,
    "context": 8192,
    "until": None,
    "busy": False,
}
ON_DEVICE: dict[str, Any] = {
    "device": "sim",
    "device_text": "simulated device",
    "device_total": 2**30,
    "experts": 0.37,
    "expert_slots": 120,
    "expert_bytes": 120 * 2**20,
    "hit_rate": 0.84,
}
STATISTICS = {
    "prompt_tokens": 7,
    "prompt_rate": 100.0,
    "generated_tokens": 3,
    "generated_rate": 50.0,
    "first_token": 0.05,
}


class Front(socketserver.ThreadingUnixStreamServer):
    """The server; `loaded` maps names to states, `log` is where requests are written, one JSON object a line."""

    daemon_threads = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["socket"], Handler)
        self.config = config
        self.loaded: dict[str, dict[str, Any]] = {}
        self.loading: list[str] = []
        self.log = Path(config["socket"] + ".requests")
        self.answering = 0


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"type": kind, "message": message, "remedy": remedy}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {"status": "ok", "version": VERSION, "host": None, "port": None})
        elif self.path == "/control/ps":
            self._json(200, {"models": list(self.server.loaded.values()), "loading": self.server.loading})
        else:
            self._json(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        with self.server.log.open("a") as file:
            file.write(json.dumps({"path": self.path, "body": body}) + "\n")
        try:
            if self.path == "/v1/chat/completions":
                self.server.answering += 1
                try:
                    self._chat(body)
                finally:
                    self.server.answering -= 1
            else:
                self._json(200, self._control(body))
        except Refusal as error:
            self._json(error.status, error.body)
        except (BrokenPipeError, ConnectionResetError):
            with self.server.log.open("a") as file:
                file.write(json.dumps({"path": "disconnected", "body": {}}) + "\n")

    def _control(self, body: dict[str, Any]) -> dict[str, Any]:
        loaded = self.server.loaded
        if self.path == "/control/shutdown":
            if body.get("if_idle") and self.server.answering:
                return {"busy": ["demo"]}
            os.unlink(self.server.config["socket"])
            self._json(200, {})
            os._exit(0)
        name = body["model"]
        if self.path == "/control/load":
            if name == "late":
                self.server.loading.append(name)
                time.sleep(60)
            if name == "huge":
                raise Refusal(507, "DoesNotFitError", "huge needs 3.00 GiB more than there is.", "Give --kv 4k.")
            fresh = name not in loaded
            device = body.get("device") or body["defaults"].get("device")
            loaded.setdefault(name, dict(STATE, name=name, **(ON_DEVICE if device == "sim" else {})))
            return {**loaded[name], "load": 0.25 if fresh else None, "notes": []}
        if name not in loaded:
            raise Refusal(404, "NotFoundError", f"{name} is not loaded.", "freetoken ps lists what is.")
        if self.path == "/control/save":
            if body["messages"][-1]["content"].startswith("FORGOTTEN"):
                raise Refusal(404, "NotFoundError", "Nothing of this conversation is in context memory.")
            Path(body["path"]).write_text(name)
            return {"tokens": 16 * len(body["messages"]), "bytes": 4096}
        if self.path == "/control/restore":
            if Path(body["path"]).read_text() != name:
                raise Refusal(500, "UnsupportedError", "The context belongs to another model.", "Save it again.")
            return {"tokens": 16, "total": 32}
        if self.path == "/control/stop":
            del loaded[name]
            return {"stopped": [name]}
        if self.path == "/control/resize":
            before = dict(loaded[name])
            tokens = body.get("kv_tokens") or body.get("kv_bytes", 0) // 1000 or before["kv_tokens"]
            loaded[name] |= {"kv_tokens": tokens, "kv_bytes": tokens * 1000, "context": tokens}
            on_cpu = before["device"] == "cpu"
            if "experts" in body and not on_cpu:
                loaded[name] |= {"experts": 0.185, "expert_slots": 60, "expert_bytes": 60 * 2**20}
            notes = ["--experts is ignored on cpu."] if "experts" in body and on_cpu else []
            return {"before": before, "after": loaded[name], "seconds": 0.012, "notes": notes}
        raise Refusal(404, "NotFoundError", f"no {self.path}")

    def _chat(self, body: dict[str, Any]) -> None:
        asked = body["messages"][-1]["content"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if asked == "die":
            self._delta(content="half an ans")
            return
        if asked == "fail":
            self._delta(content="half an ans")
            error = {"type": "FreetokenError", "message": "The model's process was killed.", "remedy": "Ask again."}
            return self._event({"error": error})
        if asked == "think":
            self._delta(reasoning_content="let me see")
        if asked == "count":
            self._delta(content=f"{len(body['messages'])} messages")
        elif asked == "slow":
            for number in range(600):
                self._delta(content=f"{number} ")
                time.sleep(0.05)
        else:
            for word in asked.split(" "):
                self._delta(content=word.upper() + " ")
        reason = "length" if asked == "cut" else "stop"
        self._event({"choices": [{"delta": {}, "finish_reason": reason}]})
        self._event({"choices": [], "usage": {}, "statistics": STATISTICS})
        self.wfile.write(b"data: [DONE]\n\n")

    def _delta(self, **delta: str) -> None:
        self._event({"choices": [{"delta": delta, "finish_reason": None}]})

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    config = json.loads(sys.argv[1])
    lock = open(config["lock"], "wb")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)
    Path(config["socket"]).unlink(missing_ok=True)
    with Front(config) as front:
        front.serve_forever()


if __name__ == "__main__":
    main()
