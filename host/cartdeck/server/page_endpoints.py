"""Owns the page at `/` and its files, which are served as they lie in `page/`, and where a plan's boxes stand in it.

It does not know what the page does. A browser gets it without a key, as it holds nothing: what it shows, it asks for
with the key that a person gives it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cartdeck.plans.compiling import CompiledPlan, Value, compile_plan
from cartdeck.plans.drawing import kind_shown
from cartdeck.plans.layout import BOX_HEIGHT, BOX_WIDTH, lay_out
from cartdeck.plans.plan import Plan
from cartdeck.server.body import read_json
from cartdeck.server.fields import Plain
from cartdeck.server.json_response import json_response
from cartdeck.server.plan_compiling import PlanCompiler
from cartdeck.server.refusal import Refused
from cartdeck.server.service import Service
from cartdeck_protocol.caps.argument import kind_of

FOLDER: Final = Path(__file__).with_name("page")
PREFIX: Final = "/page/"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from elsewhere, no script or style in the document, and no text that could become markup."""
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",  # kept, and asked about: after an update no old script meets a new server
}


@dataclass(slots=True, frozen=True)
class Asset:
    """One file of the page."""

    body: bytes
    headers: dict[str, str]


class PlanDrawing(Plain):
    plan: str


class PageEndpoints:
    """The page's files, read once, and the plan's drawing."""

    def __init__(self, service: Service, plans: PlanCompiler) -> None:
        self._service = service
        self._plans = plans
        self._assets = {path.relative_to(FOLDER).as_posix(): _asset(path) for path in _files()}

    async def page(self, request: Request) -> Response:
        return self._answer(request, "index.html")

    async def asset(self, request: Request) -> Response:
        return self._answer(request, str(request.path_params["name"]))

    def _answer(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            raise Refused(404, "NO_SUCH_PATH", f"The page has no file {name[:200]!r}.")
        known = request.headers.get("if-none-match", "")
        if asset.headers["etag"] in [one.strip().removeprefix("W/") for one in known.split(",")]:
            return Response(status_code=304, headers=asset.headers)
        return Response(asset.body, headers=asset.headers)

    async def show_plan(self, request: Request) -> Response:
        """Boxes, wires, inputs and outputs of a plan. Raises what compiling raises."""
        asked = await read_json(request, PlanDrawing, self._service.options.limits)
        router = self._service.engine.router
        drawing = await self._plans.made(asked.plan, lambda: _drawing(compile_plan(Plan.parse(asked.plan), router)))
        return json_response(drawing)


def _files() -> list[Path]:
    return sorted(path for path in FOLDER.rglob("*") if path.suffix in _TYPES)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    return Asset(body, {**_HEADERS, "etag": etag, "content-type": _TYPES[path.suffix]})


def _drawing(compiled: CompiledPlan) -> dict[str, Any]:
    layout = lay_out(compiled)
    return {
        "width": layout.width,
        "height": layout.height,
        "box": [BOX_WIDTH, BOX_HEIGHT],
        "boxes": [
            {"name": name, **{key: getattr(box, key) for key in ("kind", "title", "about", "column", "row", "x", "y")}}
            for name, box in layout.boxes.items()
        ],
        "wires": [{"from": giver, "to": taker, "name": name} for giver, taker, name in layout.wires],
        "inputs": [_value(one) for one in compiled.inputs],
        "outputs": [_value(one) for one in compiled.outputs],
    }


def _value(value: Value) -> dict[str, Any]:
    return {"name": value.name, "shown": kind_shown(value), "kind": kind_of(value.media).value, "depth": value.depth}
