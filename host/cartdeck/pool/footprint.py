"""Owns what one session takes of the memory budget: what it was granted, or what was measured where that is more.

It does not know the budget, nor the other sessions.
"""

from cartdeck.sessions.session import Session


def counts_memory(session: Session) -> bool:
    """Whether it counts against the budget: it holds an instance, or asked for memory."""
    return session.holds_instance or session.reserved_bytes > 0


def measured_bytes(session: Session) -> int:
    """Of its process, in RAM now; 0 before it is known."""
    process, health = session.process, session.health
    told = (health.rss_bytes if health is not None else None) or 0
    if process is None or not process.is_running:
        return 0
    seen = process.rss_bytes()
    # What a heartbeat says is some seconds old. It counts where the cartridge may be a child of what was started.
    return seen if seen is not None and session.cartridge.is_child_of_host else max(told, seen or 0)


def used_bytes(session: Session) -> int:
    return max(session.reserved_bytes, measured_bytes(session))
