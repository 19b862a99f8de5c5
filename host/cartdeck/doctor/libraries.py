"""Owns the examination of the extras: which libraries are here, and whether a build of llama.cpp fits this CPU.

It imports none of them: what must be loaded to be asked is loaded by a process of its own, which may crash.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cartdeck.doctor.finding import Finding, Health
from cartdeck.installing.version_order import is_version_in

DISTRIBUTION: Final = "cartdeck"
_ALL: Final = "all"
_OF_EXTRA: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?(?P<wanted>[^;]*);.*extra == ['\"](?P<extra>[^'\"]+)['\"]"
)
_PROBE_S: Final = 120.0
_LLAMA: Final = "import llama_cpp, json; print(json.dumps(llama_cpp.llama_print_system_info().decode()))"
_REBUILD: Final = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
# What llama.cpp says it was built with -> what the kernel calls it.
_CPU_NAMES: Final = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}


def examine_libraries() -> Iterator[Finding]:
    for extra, needs in sorted(_extras().items()):
        yield examine_extra(extra, [(name, _version(name), wanted) for name, wanted in needs])
    if _version("llama-cpp-python") is not None:
        yield examine_llama(_ask_llama(), cpu_flags())


def examine_extra(extra: str, needs: Sequence[tuple[str, str | None, str]]) -> Finding:
    """What is to be said of the libraries of an extra: each with its installed version and the one that is wanted."""
    missing = [name for name, version, _ in needs if version is None]
    unfit = [
        f"{name} {version} is installed, wanted is {wanted}"
        for name, version, wanted in needs
        if version is not None and not is_version_in(version, wanted)
    ]
    if not missing and not unfit:
        listed = ", ".join(f"{name} {version}" for name, version, _ in needs)
        return Finding(topic=f"extra {extra}", said=listed)
    said = "; ".join([*([f"lacks {', '.join(missing)}"] if missing else []), *unfit])
    return Finding(topic=f"extra {extra}", said=said, health=Health.NOTE, remedy=f"pip install 'cartdeck[{extra}]'")


def examine_llama(answer: tuple[int, str], flags: set[str]) -> Finding:
    """What is to be said of a build of llama.cpp. `answer` is the exit status of a process that loaded it and what it
    printed, `flags` are those of this CPU, none where the system does not list them."""
    status, printed = answer
    topic = "llama.cpp build"
    if status < 0:
        said = f"loading it killed the process (signal {-status}): it was most likely built for another CPU"
        return Finding(topic=topic, said=said, health=Health.PROBLEM, remedy=_REBUILD)
    if status:
        said = f"it cannot be loaded: {printed.strip().splitlines()[-1] if printed.strip() else f'status {status}'}"
        return Finding(topic=topic, said=said, health=Health.PROBLEM, remedy=_REBUILD)
    built = set(re.findall(r"(\w+) = 1", printed))
    if not flags or not built & _CPU_NAMES.keys():
        return Finding(topic=topic, said="it loads; whether it was made for this CPU cannot be told")
    foreign = [name for name, flag in _CPU_NAMES.items() if name in built and flag not in flags]
    unused = [name for name, flag in _CPU_NAMES.items() if name not in built and flag in flags]
    if foreign:
        said = f"it was built for another CPU: it uses {', '.join(foreign)}, which this one does not have"
        return Finding(topic=topic, said=said, health=Health.PROBLEM, remedy=_REBUILD)
    if unused:
        said = f"it fits this CPU, but does not use {', '.join(unused)}: one built here would be faster"
        return Finding(topic=topic, said=said, health=Health.NOTE, remedy=_REBUILD)
    return Finding(topic=topic, said="it was built for this CPU")


def cpu_flags() -> set[str]:
    """The instruction sets of this CPU by the kernel's names; empty where it does not list them."""
    try:
        listed = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:\s*(.+)$", listed, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _ask_llama() -> tuple[int, str]:
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-c", _LLAMA), capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 1, str(error)
    if done.returncode:
        return done.returncode, done.stderr
    return 0, str(json.loads(done.stdout.strip().splitlines()[-1]))


def wanted_by_extras(lines: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Extra → the distributions that it names, each with the versions that it wants, "" for any; from the lines
    Requires-Dist of a distribution's metadata."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        named = _OF_EXTRA.match(line)
        if named is not None and named["extra"] != _ALL:
            found.setdefault(named["extra"], []).append((named["name"], named["wanted"].strip(" ()")))
    return found


def _extras() -> dict[str, list[tuple[str, str]]]:
    try:
        return wanted_by_extras(importlib.metadata.requires(DISTRIBUTION) or [])
    except importlib.metadata.PackageNotFoundError:
        return {}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
