"""Owns the examination of the machine: interpreter, tools, memory, and what the kernel allows.

It does not know cartridges.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from cartdeck.doctor.finding import Finding, Health
from cartdeck.pool.machine_memory import total_memory_bytes
from cartdeck.sessions.network_cut import network_cut

_COMPILERS: Final = ("cc", "gcc", "clang")
_BUILD_HINT: Final = "Debian, Ubuntu: apt install build-essential cmake"


def examine_machine(*, is_cut_wanted: bool = True) -> Iterator[Finding]:
    """`is_cut_wanted`: whether the settings ask for network isolation."""
    yield _interpreter()
    yield _compiler()
    yield _pip()
    yield _memory()
    yield _network_isolation(is_cut_wanted)
    yield _death_signal()


def _interpreter() -> Finding:
    is_environment = sys.prefix != sys.base_prefix
    where = f"Python {platform.python_version()} at {sys.executable} on {platform.platform(terse=True)}"
    if is_environment:
        return Finding(topic="interpreter", said=where)
    return Finding(
        topic="interpreter",
        said=f"{where}, outside of any virtual environment",
        health=Health.NOTE,
        remedy=f"{sys.executable} -m venv .venv",
    )


def _compiler() -> Finding:
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        said = "none: libraries that come as source cannot be built here (llama-cpp-python is one)"
        return Finding(topic="compiler", said=said, health=Health.NOTE, remedy=_BUILD_HINT)
    try:
        done = subprocess.run((found, "--version"), capture_output=True, text=True, timeout=10, check=False)
        version = next(iter(done.stdout.splitlines()), "")
    except (OSError, subprocess.SubprocessError):
        version = ""
    cmake = shutil.which("cmake")
    said = f"{version or found}; cmake {'at ' + cmake if cmake else 'not on PATH (pip brings its own for a build)'}"
    return Finding(topic="compiler", said=said)


def _pip() -> Finding:
    if importlib.util.find_spec("pip") is None:
        said = "not in this Python: `cartdeck install` and models from a package index need it"
        return Finding(topic="pip", said=said, health=Health.NOTE, remedy=f"{sys.executable} -m ensurepip")
    return Finding(topic="pip", said="in this Python")


def _memory() -> Finding:
    total = total_memory_bytes()
    said = "the system does not say" if total is None else f"{total / 2**30:.1f} GiB may be used here"
    return Finding(topic="memory", said=f"{said}; {os.cpu_count() or 1} processors")


def _network_isolation(is_wanted: bool) -> Finding:
    topic = "network isolation"
    if not is_wanted:
        said = "turned off by the setting isolation.network, so every cartridge can reach the network"
        return Finding(topic=topic, said=said, health=Health.NOTE)
    cut = network_cut()
    if not cut.is_possible:
        said = f"not possible here, so every cartridge can reach the network: {cut.reason}"
        return Finding(topic=topic, said=said, health=Health.NOTE)
    return Finding(topic=topic, said="cartridges that ask for no network get none")


def _death_signal() -> Finding:
    topic = "death signal"
    if sys.platform != "linux":
        said = "the kernel has no death signal: cartridges of a killed host leave when they see their pipe closed"
        return Finding(topic=topic, said=said, health=Health.NOTE)
    if shutil.which("setpriv") is None:
        said = "setpriv is not there: programs that do not ask for it themselves may outlive a killed host"
        return Finding(topic=topic, said=said, health=Health.NOTE, remedy="apt install util-linux")
    return Finding(topic=topic, said="cartridges end with their host")
