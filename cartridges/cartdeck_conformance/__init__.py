"""The kit that checks any cartridge, in any language: what its author runs before anybody else does.

    from cartdeck_conformance import check_cartridge

    report = check_cartridge([sys.executable, "-P", "-m", "cartdeck_sdk", "shout"], fast=True)
    assert report.passed, str(report)

It drives real processes over their pipes with the wire's library, and needs no host. `CHECKS` lists what it checks.
"""

from cartdeck_conformance.catalogue import CHECKS, Check
from cartdeck_conformance.durations import Durations
from cartdeck_conformance.peers import PeerAnswer
from cartdeck_conformance.report import Report, Result, Status
from cartdeck_conformance.runner import Options, check_cartridge, check_cartridge_async

__all__ = [
    "CHECKS",
    "Check",
    "Durations",
    "Options",
    "PeerAnswer",
    "Report",
    "Result",
    "Status",
    "check_cartridge",
    "check_cartridge_async",
]
