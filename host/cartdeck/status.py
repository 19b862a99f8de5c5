"""Owns the records by which the engine shows what is there. It does not know how it came about."""

from dataclasses import dataclass

from cartdeck.discovery import Cartridge
from cartdeck.pool.policy import SessionKey
from cartdeck.pool.priority import Priority
from cartdeck_protocol.caps import CapDefinition
from cartdeck_protocol.errors import CartdeckError


@dataclass(slots=True, frozen=True)
class CapEntry:
    """One cap of one cartridge. An unavailable one is listed and never routed to."""

    cartridge: str
    definition: CapDefinition
    is_available: bool


@dataclass(slots=True, frozen=True)
class SessionStatus:
    """One session key: its process, if one runs, the calls there, and what failed before the first answer."""

    key: SessionKey
    state: str
    """starting, ready, suspect (heartbeats are missing), ending; waiting or failed where no process runs."""
    pid: int | None
    open_requests: int
    waiting_requests: int
    rss_bytes: int | None
    reserved_bytes: int
    """What it was granted of the memory budget."""
    priority: Priority | None
    """The class of its process, if one runs."""
    failures: int
    is_quarantined: bool
    first_error: CartdeckError | None


@dataclass(slots=True, frozen=True)
class CartridgeStatus:
    """One cartridge as it was found, with its sessions."""

    cartridge: Cartridge
    sessions: tuple[SessionStatus, ...]
