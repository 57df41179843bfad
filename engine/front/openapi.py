"""The OpenAPI description of the public routes, made of the tables that read the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine import __version__
from engine.front.anthropic_api.requests import MESSAGES
from engine.front.control import RESIZE
from engine.front.ollama_api.requests import CHAT as OLLAMA_CHAT
from engine.front.ollama_api.requests import GENERATE, NAMED
from engine.front.openai_api.requests import CHAT, COMPLETION, IGNORED
from engine.front.page_routes import PAGE_FILES, media_type
from engine.front.responses_api.requests import PAGE, RESPONSE
from engine.front.wire.dialects import ANTHROPIC, OLLAMA, dialect_of
from engine.front.wire.fields import Field, schema_of
from engine.front.wire.schemas import OF_ANTHROPIC_MESSAGES, OF_INPUT, OF_SYSTEM, Schema

_REFUSALS = {
    400: "something cannot be used",
    401: "the key is missing or wrong",
    403: "the Host or Origin is not allowed",
    404: "no such model or route",
    408: "the body did not come in time",
    413: "the body is too long",
    415: "the body is compressed",
    500: "the model failed",
    503: "there is no room at present",
}
_REFUSALS_OF_RESIZE = {
    409: "the model is being resized for somebody else",
    415: "the body is compressed, or not declared as JSON",
    507: "it does not fit",
}


@dataclass(frozen=True)
class Body:
    """What a route reads: the fields of `table`, and members that are read otherwise. `strict`: no others."""

    table: Mapping[str, Field]
    members: Mapping[str, Schema] | None = None
    needs: Sequence[str] = ()
    strict: bool = False

    def schema(self) -> Schema:
        """As a JSON schema. What is optional may be null as well."""
        needed = [*(name for name, field in self.table.items() if field.required), *self.needs]
        known = {**{name: schema_of(field.read) for name, field in self.table.items()}, **(self.members or {})}
        return {
            "type": "object",
            "properties": {name: each if name in needed else _or_null(each) for name, each in known.items()},
            "required": needed,
            "additionalProperties": not self.strict,
        }


_ANYTHING: Mapping[str, Schema] = {name: {} for name in sorted(IGNORED)}
_MESSAGES = Body(MESSAGES, {"messages": OF_ANTHROPIC_MESSAGES, "system": OF_SYSTEM}, ("messages",))
_RESPONSE = Body(RESPONSE, {"input": OF_INPUT}, ("input",))
OPERATIONS: Mapping[tuple[str, str], Body | None] = {
    ("get", "/health"): None,
    ("get", "/metrics"): None,
    ("get", "/openapi.json"): None,
    ("get", "/v1/models"): None,
    ("get", "/v1/models/{name}"): None,
    ("post", "/v1/chat/completions"): Body(CHAT, _ANYTHING, strict=True),
    ("post", "/v1/completions"): Body(COMPLETION, _ANYTHING, strict=True),
    ("post", "/v1/responses"): _RESPONSE,
    ("post", "/v1/responses/input_tokens"): _RESPONSE,
    ("get", "/v1/responses/{identity}"): None,
    ("get", "/v1/responses/{identity}/input_items"): None,
    ("post", "/v1/responses/{identity}/cancel"): None,
    ("delete", "/v1/responses/{identity}"): None,
    ("post", "/v1/messages"): Body(_MESSAGES.table, _MESSAGES.members, ("messages", "max_tokens")),
    ("post", "/v1/messages/count_tokens"): _MESSAGES,
    ("post", "/api/chat"): Body(OLLAMA_CHAT),
    ("post", "/api/generate"): Body(GENERATE),
    ("get", "/api/tags"): None,
    ("post", "/api/show"): Body(NAMED),
    ("get", "/api/ps"): None,
    ("get", "/api/version"): None,
    **{("get", path): None for path in PAGE_FILES},
    ("get", "/machine"): None,
    ("post", "/machine/resize"): Body(RESIZE, strict=True),
}
"""Every public route by method and path, and what it reads."""
_QUERIES = {"/v1/responses/{identity}/input_items": PAGE}
_MEDIA = {"/metrics": "text/plain", **{path: media_type(file) for path, file in PAGE_FILES.items()}}


def document() -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), body in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _operation(path, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "freetoken", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def openapi_route() -> Route:
    """GET /openapi.json"""

    async def describe(request: Request) -> Response:
        return JSONResponse(document())

    return Route("/openapi.json", describe, methods=["GET"])


def _operation(path: str, body: Body | None) -> dict[str, Any]:
    media: dict[str, Any] = {_MEDIA.get(path, "application/json"): {}}
    if body is not None and "stream" in body.table:
        media[dialect_of(path).media_type] = {}
    error = {"application/json": {"schema": _error(path)}}
    refusals = _REFUSALS | _REFUSALS_OF_RESIZE if path == "/machine/resize" else _REFUSALS
    operation: dict[str, Any] = {
        "responses": {
            "200": {"description": "the answer", "content": media},
            **{str(status): {"description": why, "content": error} for status, why in refusals.items()},
        }
    }
    text = {"type": "string", "minLength": 1}
    names = (part.strip("{}") for part in path.split("/") if part.startswith("{"))
    parameters = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    for name, field in _QUERIES.get(path, {}).items():
        parameters.append({"name": name, "in": "query", "schema": schema_of(field.read)})
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body.schema()}}}
    return operation


def _error(path: str) -> Schema:
    """What a refusal looks like; those of the guard are the same everywhere."""
    told: Schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    members: dict[str, Schema] = {
        "error": {"anyOf": [told, {"type": "string"}]} if dialect_of(path) is OLLAMA else told
    }
    if dialect_of(path) is ANTHROPIC:
        members["type"] = {"const": "error"}
    return {"type": "object", "properties": members, "required": ["error"]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema
