"""Owns the OpenAPI 3.1 document of the server: made from the requests' own models, so that it says what is checked.

It does not know how requests are answered.
"""

import json
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cartdeck import __version__
from cartdeck.server.adding_endpoints import AddModelRequest, RollbackModelRequest, UpdateModelRequest
from cartdeck.server.native_endpoints import CapRequest, PlanRequest
from cartdeck.server.openai_api.audio_endpoints import AudioRequest
from cartdeck.server.openai_api.embedding_endpoint import EmbeddingRequest
from cartdeck.server.openai_api.text_request import ChatRequest, CompletionRequest
from cartdeck.server.page_endpoints import PlanDrawing

_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"
_ANSWERS: Final[dict[str, tuple[type[BaseModel], str, str]]] = {
    "/v1/chat/completions": (ChatRequest, _JSON, "Answers a dialogue. A stream with `stream`."),
    "/v1/completions": (CompletionRequest, _JSON, "Continues a text. A stream with `stream`."),
    "/v1/embeddings": (EmbeddingRequest, _JSON, "Gives a vector for each text."),
    "/v1/audio/transcriptions": (AudioRequest, _FORM, "Writes down what is said in `file`."),
    "/v1/audio/translations": (AudioRequest, _FORM, "Writes down in English what is said in `file`."),
    "/caps/call": (CapRequest, _JSON, "Calls any cap; its events as a stream, or one record at its end."),
    "/plans/run": (PlanRequest, _JSON, "Runs a plan; its events as a stream, or one record at its end."),
    "/models/add": (AddModelRequest, _JSON, "Adds a model of a hub to the catalog, once it has answered."),
    "/models/update": (UpdateModelRequest, _JSON, "Moves a model to newer weights, once they have answered."),
    "/models/rollback": (RollbackModelRequest, _JSON, "Gives a model the weights before its last update."),
    "/plans/show": (PlanDrawing, _JSON, "Compiles a plan; its boxes and wires, and what it takes and gives."),
}
_QUESTIONS: Final = {
    "/v1/models": "The models that have a name.",
    "/v1/models/{name}": "One model, and how it does.",
    "/caps": "The caps, their arguments and outputs.",
    "/cartridges": "The cartridges with their sessions.",
    "/stats": "What each session did and does.",
    "/events": "How the server does, told as it changes: a stream. With `?log=NAME` that cartridge's log.",
    "/": "A page that shows all this.",
    "/healthz": "Whether the server lives.",
    "/readyz": "Whether it takes requests.",
    "/metrics": "Figures for Prometheus.",
    "/openapi.json": "This document.",
}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code", "class"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field at fault."},
                "code": {"type": "string"},
                "class": {"enum": ["input", "resource", "environment", "internal", "user"]},
                "remedy": {"type": "string", "description": "What to do next."},
                "phase": {"type": "string"},
                "details": {"type": "object"},
            },
        }
    },
}


def document() -> bytes:
    """The document as JSON."""
    models = sorted({model for model, _, _ in _ANSWERS.values()}, key=lambda model: model.__name__)
    references, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {
        path: {"post": _operation(text, {form: {"schema": references[model, "validation"]}})}
        for path, (model, form, text) in _ANSWERS.items()
    }
    paths |= {path: {"get": _operation(text, None, path)} for path, text in _QUESTIONS.items()}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "cartdeck", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
    return json.dumps(described, ensure_ascii=False).encode()


def _operation(text: str, content: dict[str, Any] | None, path: str = "") -> dict[str, Any]:
    error = {"description": "An error", "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, Any] = {
        "summary": text,
        "responses": {"200": {"description": "The answer"}, "4XX": error, "5XX": error},
    }
    if content is not None:
        operation["requestBody"] = {"required": True, "content": content}
    if "{name}" in path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
