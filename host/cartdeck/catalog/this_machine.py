"""Owns the look at this machine's memory and GPUs.

It does not know models. GPUs are those that NVIDIA's own command lists: the host loads no library for them.
"""

import shutil
import subprocess
from functools import cache
from typing import Final

from cartdeck.catalog.choosing import Machine
from cartdeck.pool.machine_memory import total_memory_bytes

_LIMIT_S: Final = 10.0
_MIB: Final = 1024 * 1024


@cache
def this_machine() -> Machine:
    """What is here for models; looked at once."""
    return Machine(total_memory_bytes() or 0, _cuda_bytes())


def _cuda_bytes() -> tuple[int, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LIMIT_S)
        return tuple(int(line) * _MIB for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):  # a driver that does not answer: no GPU to count on
        return ()
