"""Ollama's interface: /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import NotFoundError
from engine.files.ftw.opening import open_model
from engine.files.space import measure
from engine.files.store import READY
from engine.front.answering import folder_of, jobs_of, respond, use
from engine.front.asked import ChatAsked
from engine.front.chats import chat_prompt
from engine.front.ollama_api.models import capabilities, details, digest, template
from engine.front.ollama_api.requests import Keeping, RawAsked, read_chat, read_generate, read_name
from engine.front.ollama_api.shape import OllamaShape
from engine.front.wire.dialects import stamp
from engine.front.wire.http import read_body, while_connected
from engine.front.workers.loaded import Loaded
from engine.front.workers.supervisor import Supervisor, Wish

_FOREVER = 100 * 365 * 86400  # seconds, for clients that want a date


class Ollama:
    """The routes over one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def routes(self) -> list[Route]:
        return [
            Route("/api/chat", self.chat, methods=["POST"]),
            Route("/api/generate", self.generate, methods=["POST"]),
            Route("/api/tags", self.tags, methods=["GET"]),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/ps", self.ps, methods=["GET"]),
            Route("/api/version", self.version, methods=["GET"]),
        ]

    async def chat(self, request: Request) -> Response:
        """An answer to messages."""
        keeping, asked = await read_body(request, read_chat)
        return await while_connected(request, self._answer(keeping, asked, chat=True))

    async def generate(self, request: Request) -> Response:
        """An answer to a prompt."""
        keeping, asked = await read_body(request, read_generate)
        return await while_connected(request, self._answer(keeping, asked, chat=False))

    async def tags(self, request: Request) -> Response:
        """Every model of the store that can be used."""
        entries = await asyncio.to_thread(self._supervisor.store.entries)
        models = []
        for entry in entries:
            if entry.state != READY:
                continue
            with suppress(FileNotFoundError):  # removed a moment ago
                models.append(
                    {
                        **_named(entry.name),
                        "modified_at": stamp(entry.modified),
                        "size": entry.size,
                        **await _of_files(entry.folder),
                    }
                )
        return JSONResponse({"models": models})

    async def show(self, request: Request) -> Response:
        """What a model is."""
        name = await read_body(request, read_name)
        folder = folder_of(self._supervisor, name)
        manifest = (await asyncio.to_thread(open_model, folder)).manifest
        spec: Any = manifest.spec
        family = spec["family"]
        info = {
            "general.architecture": family,
            "general.basename": name,
            f"{family}.block_count": len(spec["layers"]),
            f"{family}.context_length": spec["context_length"],
            f"{family}.embedding_length": spec["hidden_size"],
        }
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "",
                "template": await asyncio.to_thread(template, folder),
                "details": await asyncio.to_thread(details, folder),
                "model_info": info,
                "modified_at": stamp((await asyncio.to_thread(measure, folder))[1]),
                "capabilities": await asyncio.to_thread(capabilities, folder),
            }
        )

    async def ps(self, request: Request) -> Response:
        """The loaded models."""
        models = []
        for loaded in await self._supervisor.refresh_all():
            with suppress(NotFoundError, FileNotFoundError):  # its files were removed under it
                folder = folder_of(self._supervisor, loaded.name)
                models.append({**_running(loaded), **await _of_files(folder)})
        return JSONResponse({"models": models})

    async def version(self, request: Request) -> Response:
        """Theirs: the first release with all of these interfaces. VS Code and others refuse one that is too old."""
        return JSONResponse({"version": "0.14.0"})

    async def _answer(self, keeping: Keeping, asked: ChatAsked | RawAsked | None, chat: bool) -> Response:
        folder_of(self._supervisor, keeping.model)
        if asked is None and keeping.keep_alive == 0:
            return await self._unload(keeping.model, chat)
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, keeping.model))
            if keeping.keep_alive is not None:  # while it is in use: it must not go for being idle before it answers
                await self._supervisor.load(keeping.model, Wish(keep_alive=keeping.keep_alive))
            match asked:
                case None:
                    return _nothing_said(loaded.name, chat, "load")
                case ChatAsked():
                    return await _chat(loaded, asked, chat, stack)
                case RawAsked():
                    ids = await asyncio.to_thread(loaded.text.encode_prompt, asked.prompt)
                    jobs = jobs_of(asked, loaded, [(tuple(ids), loaded.text.anchors(ids))])
                    return await respond(asked, loaded, jobs, _shape(loaded, asked, chat), stack)

    async def _unload(self, name: str, chat: bool) -> Response:
        if any(loaded.name == name for loaded in self._supervisor.models):
            await self._supervisor.stop(name)
        return _nothing_said(name, chat, "unload")


async def _chat(loaded: Loaded, asked: ChatAsked, chat: bool, stack: AsyncExitStack) -> Response:
    prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
    jobs = jobs_of(asked, loaded, [prompt], reader)
    return await respond(asked, loaded, jobs, _shape(loaded, asked, chat, reader.form.id_style), stack)


def _shape(loaded: Loaded, asked: ChatAsked | RawAsked, chat: bool, id_style: str = "") -> OllamaShape:
    return OllamaShape(loaded.name, chat, loaded.text if asked.logprobs >= 0 else None, id_style)


async def _of_files(folder: Path) -> dict[str, Any]:
    """What the files of a model say. FileNotFoundError where they are gone."""
    return {"digest": await asyncio.to_thread(digest, folder), "details": await asyncio.to_thread(details, folder)}


def _running(loaded: Loaded) -> dict[str, Any]:
    """What is told of a loaded model beside what its files say."""
    state, latest = loaded.state(), time.time() + _FOREVER
    return {
        **_named(loaded.name),
        "size": state["size"],
        "size_vram": 0 if state["device"] == "cpu" else state["expert_bytes"] or 0,
        "expires_at": stamp(latest if state["until"] is None else min(state["until"], latest)),
        "context_length": state["context"],
    }


def _named(name: str) -> dict[str, str]:
    return {"name": name, "model": name}


def _nothing_said(model: str, chat: bool, reason: str) -> Response:
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    head = {"model": model, "created_at": stamp(time.time())}
    return JSONResponse({**head, **said, "done": True, "done_reason": reason})
