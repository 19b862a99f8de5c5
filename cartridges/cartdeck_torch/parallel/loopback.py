"""Owns the loopback interface that ranks talk over: a process that was cut off from the network has one that is down.

It does not know ranks. It reaches nothing outside of this machine, up or not.
"""

import socket
import struct
import sys
from typing import Final

from cartdeck_protocol.errors import Code, failure

LOOPBACK: Final = "lo" if sys.platform == "linux" else "lo0"
_GET_FLAGS: Final = 0x8913  # SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP of netdevice(7)
_SET_FLAGS: Final = 0x8914
_UP: Final = 1
_REQUEST: Final = struct.Struct("16sH14x")


def bring_up_loopback() -> None:
    """Sees to it that the loopback interface of this process's network is up. Raises `UNSUPPORTED` where it is down and
    this process may not change that."""
    if sys.platform != "linux":
        return
    from fcntl import ioctl  # noqa: PLC0415 - Unix alone has it

    name = LOOPBACK.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            _, flags = _REQUEST.unpack(ioctl(handle, _GET_FLAGS, _REQUEST.pack(name, 0)))
            if not flags & _UP:
                ioctl(handle, _SET_FLAGS, _REQUEST.pack(name, flags | _UP))
        except OSError as error:
            raise failure(
                Code.UNSUPPORTED,
                f"ranks talk over the loopback interface, which is down in this process ({error.strerror}); "
                'set isolation.network to "off", or leave tensor-parallel out',
                argument="tensor-parallel",
                phase="load",
            ) from None
