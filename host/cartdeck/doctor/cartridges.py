"""Owns the examination of the cartridges: what was found, what was not, and whether each starts.

It does not load a model: it ends with the handshake.
"""

import time
from typing import Final

from cartdeck.discovery import Cartridge
from cartdeck.doctor.finding import Finding, Health
from cartdeck.engine import Engine
from cartdeck_protocol.errors import CartdeckError

_START_S: Final = 60.0


async def examine_cartridges(engine: Engine) -> list[Finding]:
    """A finding for each cartridge, in the order in which they were found; each that can be is started and ended."""
    findings = [await _examine(engine, status.cartridge) for status in engine.cartridges()]
    for broken in engine.broken():
        findings.append(
            Finding(
                topic="cartridge ?",
                said=f"{broken.origin}: {broken.error.message.removeprefix(f'{broken.origin}: ')}",
                health=Health.PROBLEM,
                remedy=broken.error.remedy,
            )
        )
    return findings


async def _examine(engine: Engine, cartridge: Cartridge) -> Finding:
    topic = f"cartridge {cartridge.name}"
    if not cartridge.is_available:
        names = " and ".join(dict.fromkeys(need.module for need in cartridge.missing))
        commands = "; ".join(dict.fromkeys(need.install for need in cartridge.missing))
        return Finding(topic=topic, said=f"unavailable, lacks {names}", health=Health.NOTE, remedy=commands)
    caps = len(cartridge.manifest.caps)
    what = f"{cartridge.manifest.version}, {caps} caps, from {cartridge.origin}"
    began_s = time.monotonic()
    try:
        await engine.load(cartridge.name, timeout_s=_START_S)
    except CartdeckError as error:
        said = f"{what}; it does not start: {error.message}"
        return Finding(topic=topic, said=said, health=Health.PROBLEM, remedy=error.remedy)
    took_s = time.monotonic() - began_s
    await engine.unload(cartridge.name)
    return Finding(topic=topic, said=f"{what}; manifest and handshake in order, {took_s:.2f} s")
