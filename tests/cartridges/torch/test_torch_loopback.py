"""What ranks talk over, in a process that was cut off from the network: brought up, or said to be down."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import fcntl, os, socket, sys
from cartdeck_protocol.errors import CartdeckError
from cartdeck_torch.parallel.loopback import bring_up_loopback

if "nobody" in sys.argv:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    bring_up_loopback()
    bring_up_loopback()
except CartdeckError as error:
    print(error.code, error.argument, error.message)
else:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        print("they talk")
"""


def said_in_an_empty_network(*words: str) -> str:
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None or os.getuid():
        pytest.skip("only root makes an empty network without a namespace of users")
    command = [unshare, "--net", "--", sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"this system does not let root do it: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_may_brings_it_up() -> None:
    assert said_in_an_empty_network() == "they talk"


def test_who_may_not_is_told_what_to_set() -> None:
    said = said_in_an_empty_network("nobody")
    assert said.startswith("UNSUPPORTED tensor-parallel ")
    assert 'isolation.network to "off"' in said
