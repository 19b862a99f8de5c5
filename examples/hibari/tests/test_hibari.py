"""The cartridge keeps the rules of the wire, and says what its model makes of the sample."""

import sys

import pytest

from cartdeck_conformance import check_cartridge

pytest.importorskip("hibari", reason="the library is not installed", exc_type=ImportError)


def test_the_cartridge_keeps_the_rules() -> None:
    report = check_cartridge([sys.executable, "-P", "-m", "cartdeck_sdk", "hibari_cartridge"], fast=True)
    assert report.passed, str(report)
