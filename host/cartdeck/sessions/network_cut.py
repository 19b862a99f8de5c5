"""Owns how a process starts without a network: the words that stand before its command, and whether they work here.

It does not know who is to be cut off. On Linux a process can leave its host's network for an empty one of its own, if
the kernel allows it to this user; whether it does is tried out once, since no file tells reliably.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

_PROBE_S: Final = 5.0
_INTERFACES: Final = "/proc/net/dev"
# Processes of one model talk over the loopback interface, which is down in a new network, and which a user without
# rights may bring up only at its beginning. What that takes is given back before the command.
_UP: Final = (
    'PATH="$PATH:/usr/sbin:/sbin" ip link set lo up && exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"'
)
# Who may do it without a user namespace keeps the rights over files that one would take away.
WAYS: Final = (
    ("--net", "--"),
    ("--user", "--map-current-user", "--keep-caps", "--net", "--", "sh", "-c", _UP, "sh"),
    ("--user", "--map-current-user", "--net", "--"),
)


@dataclass(frozen=True, slots=True)
class NetworkCut:
    """`prefix` goes before a command; it is empty where this cannot be done, and `reason` says why."""

    prefix: tuple[str, ...]
    reason: str = ""

    @property
    def is_possible(self) -> bool:
        return bool(self.prefix)


@cache
def network_cut() -> NetworkCut:
    """How to start a command that reaches no network here, tried out once for this process."""
    if sys.platform != "linux":
        return NetworkCut((), f"there is no way for it on {sys.platform}")
    unshare, cat = shutil.which("unshare"), shutil.which("cat")
    if unshare is None or cat is None:
        return NetworkCut((), "the program unshare (of util-linux) is not there")
    reasons: list[str] = []
    for way in WAYS:
        prefix = (unshare, *way)
        try:
            done = subprocess.run(
                (*prefix, cat, _INTERFACES),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"unshare cannot be run: {error}")
            continue
        if done.returncode == 0 and _interfaces(done.stdout) <= {"lo"}:
            return NetworkCut(prefix)
        reasons.append(done.stderr.strip() or "a process that was to be cut off still sees network interfaces")
    return NetworkCut((), "; ".join(dict.fromkeys(reasons)))


def _interfaces(table: str) -> set[str]:
    """The names in /proc/net/dev, which has two lines of heading."""
    return {line.partition(":")[0].strip() for line in table.splitlines()[2:]}
