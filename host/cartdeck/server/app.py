"""Owns which path leads where, and what is answered to errors that no endpoint caught.

It does not know what endpoints do.
"""

import logging
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cartdeck.server.adding_endpoints import AddingEndpoints
from cartdeck.server.gate import AccessLog, Gate
from cartdeck.server.json_response import error_response
from cartdeck.server.listing_endpoints import ListingEndpoints
from cartdeck.server.live.endpoint import LiveEndpoint
from cartdeck.server.native_endpoints import NativeEndpoints
from cartdeck.server.openai_api.audio_endpoints import AudioEndpoints
from cartdeck.server.openai_api.embedding_endpoint import EmbeddingEndpoint
from cartdeck.server.openai_api.text_endpoints import TextEndpoints
from cartdeck.server.openapi import document
from cartdeck.server.page_endpoints import PREFIX, PageEndpoints
from cartdeck.server.plan_compiling import PlanCompiler
from cartdeck.server.refusal import CLIENT_GONE, Refused
from cartdeck.server.service import Service
from cartdeck_protocol.errors import CartdeckError, Code, failure

NOT_HERE: Final = {
    "/v1/images/generations": "images cannot be made",
    "/v1/images/edits": "images cannot be edited",
    "/v1/images/variations": "images cannot be varied",
    "/v1/audio/speech": "speech cannot be made",
}
"""Paths of OpenAI's that wait for a cartridge, and what nobody can do yet."""
_LOGGER: Final = logging.getLogger("cartdeck.server")


def make_app(service: Service, *, log: AccessLog | None = None) -> ASGIApp:
    """The application: all endpoints behind the gate."""
    plans = PlanCompiler(service.engine)
    texts, audio, native = TextEndpoints(service), AudioEndpoints(service), NativeEndpoints(service, plans)
    embedding, listing = EmbeddingEndpoint(service), ListingEndpoints(service)
    adding = AddingEndpoints(service)
    page, live = PageEndpoints(service, plans), LiveEndpoint(service)
    described = document()

    async def openapi(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    post, get = ["POST"], ["GET"]
    routes = [
        Route("/v1/chat/completions", texts.chat, methods=post),
        Route("/v1/completions", texts.complete, methods=post),
        Route("/v1/embeddings", embedding.embed, methods=post),
        Route("/v1/audio/transcriptions", audio.transcribe, methods=post),
        Route("/v1/audio/translations", audio.translate, methods=post),
        Route("/v1/models", listing.models, methods=get),
        Route("/v1/models/{name:path}", listing.model, methods=get),
        Route("/caps/call", native.call, methods=post),
        Route("/plans/run", native.run_plan, methods=post),
        Route("/plans/show", page.show_plan, methods=post),
        Route("/models/add", adding.add, methods=post),
        Route("/models/update", adding.update, methods=post),
        Route("/models/rollback", adding.rollback, methods=post),
        Route("/caps", listing.caps, methods=get),
        Route("/cartridges", listing.cartridges, methods=get),
        Route("/stats", listing.stats, methods=get),
        Route("/events", live.events, methods=get),
        Route("/healthz", listing.healthz, methods=get),
        Route("/readyz", listing.readyz, methods=get),
        Route("/metrics", listing.metrics, methods=get),
        Route("/openapi.json", openapi, methods=get),
        Route("/", page.page, methods=get),
        Route(PREFIX + "{name:path}", page.asset, methods=get),
        *(Route(path, _not_here(path), methods=post) for path in NOT_HERE),
    ]
    handlers: dict[Any, Any] = {
        CartdeckError: _on_error,
        Refused: _on_error,
        HTTPException: _on_http_error,
        ClientDisconnect: _on_client_gone,
        Exception: _on_fault,
    }
    app: ASGIApp = Gate(Starlette(routes=routes, exception_handlers=handlers), service, log=log)
    if service.options.origins:
        app = CORSMiddleware(
            app, allow_origins=service.options.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def _not_here(path: str) -> Any:
    async def refuse(_request: Request) -> Response:
        message = f"{path}: {NOT_HERE[path]} here: no cartridge offers a cap for it."
        raise Refused(501, Code.UNSUPPORTED.name, message)

    return refuse


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CartdeckError | Refused)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return error_response(
            Refused(404, "NO_SUCH_PATH", f"There is nothing at {path[:200]}; /openapi.json says what is.")
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} does not go with {path[:200]}; expected {allowed}."
        return error_response(Refused(405, "WRONG_METHOD", message, headers=(("allow", allowed),)))
    return error_response(Refused(error.status_code, Code.BAD_ARGUMENT.name, str(error.detail)))


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _on_fault(_request: Request, error: Exception) -> Response:
    _LOGGER.error("a request failed", exc_info=error)
    message = f"unexpected {type(error).__name__}; the server's log has more"
    return error_response(failure(Code.INTERNAL, message))
