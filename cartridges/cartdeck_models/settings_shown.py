"""Owns the cap models-settings: the settings in force, and whether there is a token; never the token.

It does not know who set them.
"""

import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cartdeck_models.download import library
from cartdeck_models.settings import Settings
from cartdeck_sdk import Output


async def show(output: Output) -> None:
    """Answer with the record."""
    record = await output.run_with_keepalive(0.0, "Looking for a token", lambda _: shown(library().settings))
    await output.write(json.dumps(record, ensure_ascii=False))


def shown(settings: Settings) -> dict[str, Any]:
    """What is told of `settings`. A name and password in the endpoint's URL are left out."""
    hub = settings.hub
    return {
        "endpoint": _without_user(hub.endpoint),
        "is_offline": hub.is_offline,
        "uses_xet": hub.uses_xet,
        "cache_folder": str(settings.hub_cache_dir),
        "folder": str(settings.models_dir),
        "connections": hub.connections,
        "quiet_limit_s": hub.quiet_limit_s,
        "stall_limit_s": settings.stall_limit_s,
        "lock_limit_s": settings.lock_limit_s,
        "has_token": _has_token(settings),
    }


def _has_token(settings: Settings) -> bool:
    from cartdeck_models.hub.client import HubClient  # noqa: PLC0415 - imports huggingface_hub, in a worker thread

    client = HubClient(settings.hub)
    try:
        return client.has_token
    finally:
        client.close()


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
