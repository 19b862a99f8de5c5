"""Owns how long the kit waits, how much it sends, and what it lets pass. It does not know what is checked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Every wait of the kit, in seconds, and the other bounds that a cartridge is judged by.

    The bounds are wider than a host's where a loaded machine would make a good cartridge fail: a host gives 2 s to
    leave and 2 s to answer a CANCEL.
    """

    hello_s: float = 30.0
    """From the start of the process to its HELLO: beyond it the handshake has failed."""
    start_s: float = 10.0
    """From the start of the process to the answer of the identity cap: beyond it the start is too slow."""
    answer_s: float = 15.0
    """For the answer to a request that needs no work."""
    sample_s: float = 300.0
    """For the answer to a sample, which may load a model."""
    output_s: float = 60.0
    """The same from its first output on: beyond it the output is taken to be without end."""
    lost_s: float = 120.0
    """Without a frame of a sample for so long it is given up, as a host does."""
    sample_bytes: int = 256 * 1024 * 1024
    """Of the outputs of a sample: beyond it they are taken to be without end."""
    cancel_s: float = 5.0
    """From a CANCEL to the terminal."""
    exit_s: float = 5.0
    """From the end of stdin to the end of the process."""
    silence_s: float = 15.0
    """The longest time without a frame of a request that is open, with `keepalive_s` as it is here."""
    quiet_s: float = 0.15
    """How long the kit looks for what must not come."""
    heartbeat_s: float = 0.25
    """What the cartridge is told in CARTDECK_HEARTBEAT_S."""
    keepalive_s: float = 0.5
    """What the cartridge is told in CARTDECK_KEEPALIVE_S."""
    memory_growth_bytes: int = 16 * 1024 * 1024
    """How much larger the process may be after the calls of the memory check than before."""
    stderr_bytes: int = 64 * 1024
    """How much it may write to stderr while all goes well."""
