"""Owns what can be asked of a server itself: models, caps, cartridges, figures, its health.

It does not know calls.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cartdeck import __version__
from cartdeck.plain import plain
from cartdeck.server.json_response import json_response
from cartdeck.server.metrics import CONTENT_TYPE
from cartdeck.server.models.directory import DEFAULT_NAME, Kind, ServedModel
from cartdeck.server.models.in_memory import is_in_memory
from cartdeck.server.service import Service
from cartdeck.status import CartridgeStatus
from cartdeck_protocol.errors import CartdeckError, Code


class ListingEndpoints:
    """All of them, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _request: Request) -> Response:
        data = [self._model(model) for model in self._service.directory.models()]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        return json_response(self._model(self._find(name), name))

    def _find(self, name: str) -> ServedModel:
        """The model of that name, whatever it is for. Raises MODEL_NOT_FOUND."""
        for model in self._service.directory.models():
            if name == model.name or (name in model.aliases and name != DEFAULT_NAME):
                return model
        failed: CartdeckError | None = None
        for kind in Kind:
            try:
                return self._service.directory.find(name, kind)
            except CartdeckError as error:
                failed = error if failed is None or error.code is Code.MODEL_NOT_FOUND else failed
        assert failed is not None
        raise failed

    def _model(self, model: ServedModel, name: str | None = None) -> dict[str, Any]:
        record: dict[str, Any] = {
            "id": name or model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "cartdeck",
            "kinds": [kind.value for kind in model.kinds],
            "aliases": list(model.aliases),
        }
        if model.description:
            record["description"] = model.description
        return record | self._state(model.name, model)

    def _state(self, name: str, model: ServedModel | None) -> dict[str, Any]:
        service = self._service
        is_there = model is None or is_in_memory(service.engine, service.directory, model)
        return service.states.of(name).to_plain(is_in_memory=is_there)

    async def caps(self, _request: Request) -> Response:
        found: dict[str, dict[str, Any]] = {}
        for entry in self._service.engine.caps():
            record = found.setdefault(str(entry.definition.urn), {**entry.definition.to_plain(), "cartridges": []})
            record["cartridges"].append({"name": entry.cartridge, "is_available": entry.is_available})
        return json_response({"caps": [plain(found[urn]) for urn in sorted(found)]})

    async def cartridges(self, _request: Request) -> Response:
        return json_response({"cartridges": [_cartridge(one) for one in self._service.engine.cartridges()]})

    async def stats(self, _request: Request) -> Response:
        """What `cartdeck top` shows."""
        service = self._service
        names = dict.fromkeys((*service.states.names(), *service.schedules))
        listed = {one.name: one for one in service.directory.models()}
        models = {name: self._state(name, listed.get(name)) for name in names if name not in service.guards}
        for name, windows in service.schedules.items():
            models[name]["schedule"] = windows.to_plain()
        guards = {name: service.states.of(name).to_plain() | one.to_plain() for name, one in service.guards.items()}
        server = {"version": __version__, "open_requests": service.open_requests, "started_s": service.started_s}
        told = {"server": server, "models": models, "guards": guards}
        return json_response({**told, **plain(service.engine.stats().to_plain())})

    async def healthz(self, _request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Ready: requests are taken, and there is a cartridge to serve one."""
        if self._service.is_stopping:
            return json_response({"status": "stopping"}, 503)
        is_ready = any(one.cartridge.is_available for one in self._service.engine.cartridges())
        return json_response({"status": "ready" if is_ready else "no cartridge"}, 200 if is_ready else 503)

    async def metrics(self, _request: Request) -> Response:
        return Response(self._service.metrics.render(), headers={"content-type": CONTENT_TYPE})


def _cartridge(status: CartridgeStatus) -> dict[str, Any]:
    cartridge = status.cartridge
    sessions = [
        {
            "instance": one.key.instance,
            "state": one.state,
            "pid": one.pid,
            "open_requests": one.open_requests,
            "waiting_requests": one.waiting_requests,
            "rss_bytes": one.rss_bytes,
            "is_quarantined": one.is_quarantined,
            "first_error": None if one.first_error is None else plain(one.first_error.to_wire()),
        }
        for one in status.sessions
    ]
    return {
        "name": cartridge.name,
        "version": cartridge.manifest.version,
        "is_available": cartridge.is_available,
        "install": [need.install for need in cartridge.missing],
        "caps": [cap.alias for cap in cartridge.manifest.caps],
        "sessions": sessions,
    }
