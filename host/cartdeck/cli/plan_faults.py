"""Owns how several faults of one plan are told: as paragraphs, as JSON log lines, or as one record.

It does not know how they were found.
"""

import sys
from collections.abc import Sequence

from cartdeck.cli.exit_codes import ExitCode, exit_code
from cartdeck.cli.json_log import json_log
from cartdeck.cli.listing import print_text
from cartdeck.cli.output import STANDARD_LINE
from cartdeck.cli.render import error_record, error_text, json_line
from cartdeck_protocol.errors import CartdeckError


def tell_faults(faults: Sequence[CartdeckError], *, as_json: bool) -> ExitCode:
    """Tell the faults, of which there is one at least; the exit code, which is that of the first.

    As JSON `error` is the first, as any command tells its error, and `faults` has all.
    """
    status = exit_code(faults[0])
    records = [error_record(fault, exit_code(fault)) for fault in faults]
    if as_json:
        print_text(json_line({**records[0], "faults": [record["error"] for record in records]}))
        return status
    log = json_log()
    for fault, record in zip(faults, records, strict=True):
        if log is not None:
            log.write("error", fault.message, **record)
        else:
            sys.stderr.write(STANDARD_LINE.leave() + error_text(fault))
    sys.stderr.flush()
    return status
