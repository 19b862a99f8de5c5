"""Owns the exit codes of the command line, and which error ends in which.

It does not know how an error is shown. The table, as README.md has it:

    0    the work is done
    1    a fault of the command line itself; please report it. Of `check`: the cartridge failed a check
    2    bad arguments: the same command fails again
    3    no cartridge serves the cap, or more than one does and nothing decides
    4    a cartridge, or the engine, failed
    5    memory, disk, time or a queue ran out
    6    something outside is missing or broken: a package, a network, a token, a download
    130  ended by Ctrl-C (128 + SIGINT); 143 by SIGTERM
    141  the reader of standard output went away (128 + SIGPIPE), as with `| head -1`
"""

from enum import IntEnum
from typing import Final

from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass


class ExitCode(IntEnum):
    DONE = 0
    FAULT = 1
    BAD_ARGUMENTS = 2
    NO_SUCH_CAP = 3
    CARTRIDGE_FAILED = 4
    RESOURCE = 5
    ENVIRONMENT = 6
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


_BY_CODE: Final = {
    Code.NO_SUCH_CAP: ExitCode.NO_SUCH_CAP,
    Code.AMBIGUOUS_CAP: ExitCode.NO_SUCH_CAP,
    Code.READER_STALLED: ExitCode.RESOURCE,
}
_BY_CLASS: Final = {
    ErrorClass.INPUT: ExitCode.BAD_ARGUMENTS,
    ErrorClass.RESOURCE: ExitCode.RESOURCE,
    ErrorClass.ENVIRONMENT: ExitCode.ENVIRONMENT,
    ErrorClass.INTERNAL: ExitCode.CARTRIDGE_FAILED,
    ErrorClass.USER: ExitCode.INTERRUPTED,
}


def exit_code(error: CartdeckError) -> ExitCode:
    """The exit code for `error`: by its code where the table names it, else by its class."""
    return _BY_CODE.get(error.code, _BY_CLASS[error.error_class])
