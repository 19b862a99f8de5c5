"""Owns which sessions the calls of a server's model use: what is loaded under its name, and under no other.

It does not know how its requests went.
"""

from contextlib import suppress

from cartdeck.calls.arguments import prepare_instance
from cartdeck.engine import Engine
from cartdeck.pool.policy import SessionKey
from cartdeck.server.models.directory import Kind, ModelDirectory, ServedModel
from cartdeck_protocol.errors import CartdeckError


def keys_of(engine: Engine, directory: ModelDirectory, model: ServedModel) -> tuple[SessionKey, ...]:
    """The keys of the sessions, for each kind of request and each profile that fits: two models of one file with other
    settings have none in common. None for a model that another server answers for."""
    if model.place is not None:
        return ()
    found: dict[SessionKey, None] = {}
    for kind in model.kinds:
        with suppress(CartdeckError):  # nobody serves it here: nothing is loaded for it
            found |= dict.fromkeys(_keys(engine, directory.find(model.name, kind), kind))
    return tuple(found)


def _keys(engine: Engine, model: ServedModel, kind: Kind) -> list[SessionKey]:
    keys: list[SessionKey] = []
    for way in (model, *(one for one in model.stand_ins if one.name == model.name)):
        arguments = way.arguments_with({})
        route = engine.router.route_text(way.cap(kind), arguments)
        prepared = prepare_instance(route.definition, route.instance, arguments)
        keys.append(SessionKey(route.cartridge.name, prepared.instance))
    return keys


def is_in_memory(engine: Engine, directory: ModelDirectory, model: ServedModel) -> bool:
    """Whether a process holds it, as far as the engine knows; True for one on another server."""
    doors = engine.pool.doors
    return model.place is not None or any(
        (door := doors.get(key)) is not None and door.session is not None for key in keys_of(engine, directory, model)
    )
