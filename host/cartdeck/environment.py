"""Owns the environment of a cartridge's process: which variables go there.

It does not know how a process is started. A child gets what is on the list and nothing else, so that a secret in the
user's shell does not reach code that has no use for it.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cartdeck.sessions.leftover import ENGINE_VARIABLE, engine_mark

SESSION_VARIABLE: Final = "CARTDECK_SESSION"
KEEPALIVE_VARIABLE: Final = "CARTDECK_KEEPALIVE_S"
HOST_VARIABLE: Final = "CARTDECK_HOST_PID"
HEARTBEAT_VARIABLE: Final = "CARTDECK_HEARTBEAT_S"

# A name ending in * is a prefix.
ALLOWED: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*",
    "TERM", "NO_COLOR", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX", "PYTHONUTF8", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "CARTDECK_*",
    "CUDA_*", "NVIDIA_*", "HIP_*", "ROCR_*", "HSA_*", "GGML_*", "LLAMA_*", "OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*",
    "GOMP_*", "TORCH_*", "PYTORCH_*", "TRITON_*", "MALLOC_*", "COVERAGE_*",
)  # fmt: skip  # a list to scan, grouped by what the names are for
"""Variables for every cartridge: where things are, the language, and how native libraries compute."""

WAY_OUT: Final = (
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip  # as above
"""Variables for the cartridges that ask for the network: proxies and certificates."""

NETWORK: Final = (*WAY_OUT, "HF_*", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_*", "PIP_*", "NETRC")
"""Variables for the cartridges that the settings name, and for no other: these, tokens, the package index."""


def new_session_mark() -> str:
    """A random value for CARTDECK_SESSION: it marks a process and all that it starts."""
    return secrets.token_hex(16)


def child_environment(
    *,
    mark: str,
    may_use_network: bool,
    asks_for_network: bool = False,
    durations: Mapping[str, float],
    host_pid: int | None = None,
    extra: Iterable[str] = (),
    source: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The whole environment of one cartridge's process. One that `asks_for_network` itself gets no token for it.

    `durations` are the settings it must know, by variable name, in seconds. `host_pid` is named to a process that the
    host starts directly: it leaves when its parent is another one already. `extra` are further names or
    prefixes ending in *, from the settings. `source` is the host's own environment unless given.
    """
    source = os.environ if source is None else source
    patterns = (*ALLOWED, *extra, *(NETWORK if may_use_network else WAY_OUT if asks_for_network else ()))
    names = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    environment = {name: value for name, value in source.items() if name in names or name.startswith(prefixes)}
    _keep_absolute(environment, "PYTHONPATH")
    # Text in a log is UTF-8 whatever the locale says, and a line is there when it was written.
    environment["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    environment["PYTHONUNBUFFERED"] = "1"
    environment[SESSION_VARIABLE] = mark
    environment[ENGINE_VARIABLE] = engine_mark()
    environment.pop(HOST_VARIABLE, None)  # a host inside a cartridge inherits that of the outer one
    if host_pid is not None:
        environment[HOST_VARIABLE] = str(host_pid)
    environment.update({name: repr(float(seconds)) for name, seconds in durations.items()})
    return environment


def _keep_absolute(environment: dict[str, str], name: str) -> None:
    """An empty or relative part of a module path means the working directory: files there must not become modules."""
    parts = [part for part in environment.get(name, "").split(os.pathsep) if Path(part).is_absolute()]
    environment.pop(name, None)
    if parts:
        environment[name] = os.pathsep.join(parts)
