"""Cartridges that are broken in one way each: the kit finds it, says where, and blames nothing else."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cartdeck_conformance import CHECKS, Durations, Options, Report, Status, check_cartridge

DOUBLES = Path(__file__).parent / "doubles"
QUICK = Durations(
    heartbeat_s=0.05,
    keepalive_s=0.1,
    quiet_s=0.05,
    silence_s=10.0,
    cancel_s=10.0,
    start_s=20.0,
    exit_s=10.0,
    sample_bytes=1024 * 1024,
)
# Where the fault is that something never comes, it is waited for only so long.
SHORT = {
    "1": {"quiet_s": 2.0},
    "2": {"start_s": 0.5},
    "6-trickle": {"output_s": 1.0},
    "6-mute": {"lost_s": 1.0},
    "14": {"silence_s": 1.0},
    "15": {"answer_s": 0.6},
    "18": {"exit_s": 0.2},
    "21": {"answer_s": 3.0, "hello_s": 4.0},
    "23": {"answer_s": 3.0},
    "24": {"cancel_s": 0.3},
    "27": {"answer_s": 3.0},
    "28": {"cancel_s": 0.3},
    "29": {"exit_s": 0.2},
}
START = ("1", "2", "3", "4", "5", "15", "18", "20", "21", "29")
ANSWER = (
    "6", "7", "7-form", "8", "9", "10", "11", "12", "12-open", "13", "14", "16", "17", "19", "22", "23",
    "24", "25", "26", "27", "28", "30",
)  # fmt: skip  # a list to scan


def durations(fault: str) -> Durations:
    return replace(QUICK, **SHORT.get(fault, {}))


def command(fault: str) -> list[str]:
    program = "broken_start.py" if fault in START else "broken_answer.py"
    return [sys.executable, str(DOUBLES / program), fault]


def failed(report: Report) -> set[int]:
    return {result.check.number for result in report.failed}


def test_a_well_behaved_one_without_an_sdk_passes_everything() -> None:
    options = Options(durations=QUICK)
    report = check_cartridge([sys.executable, str(DOUBLES / "small_cartridge.py")], fast=True, options=options)
    assert report.passed, str(report)
    assert {result.check.number for result in report.results if result.status is Status.NOT_EXERCISED} == {28}


def test_a_wrong_sample_that_was_given_is_no_fault_of_the_manifest() -> None:
    options = Options(durations=QUICK, samples={"shout": {"volume": "x"}, "whisper": {"text": "hi"}})
    command = [sys.executable, str(DOUBLES / "small_cartridge.py")]
    report = check_cartridge(command, fast=True, only={3, 6}, options=options)
    assert failed(report) == {6}, str(report)
    [found] = report.failed
    assert sorted(found.faults) == [
        "the sample that was given for shout: shout has no argument 'volume'; the arguments are text, times",
        "the sample that was given for whisper: it has no such cap; it has shout",
    ]


def test_there_is_a_broken_one_for_each_check() -> None:
    assert {int(fault.partition("-")[0]) for fault in (*START, *ANSWER)} == {check.number for check in CHECKS}


@pytest.mark.parametrize("fault", [*START, *ANSWER])
def test_a_broken_one_fails_its_own_check_alone(fault: str) -> None:
    number = int(fault.partition("-")[0])
    report = check_cartridge(command(fault), fast=True, only={number}, options=Options(durations=durations(fault)))
    assert failed(report) == {number}, str(report)
    assert report.failed[0].check.remedy in str(report)


@pytest.mark.parametrize("fault", ["12", "13", "16", "20"])
def test_a_broken_one_fails_its_own_check_among_those_that_see_it(fault: str) -> None:
    only = {*range(3, 18), int(fault)}
    report = check_cartridge(command(fault), fast=True, only=only, options=Options(durations=durations(fault)))
    assert failed(report) == {int(fault)}, str(report)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("6-endless", "gave more than 1048576 bytes, and did not end"),
        ("6-trickle", "did not end within 1 s of its first output"),
        ("6-mute", "gave no frame for 1 s"),
    ],
)
def test_why_a_sample_is_given_up_is_told_with_what_sets_the_limit(fault: str, found: str) -> None:
    report = check_cartridge(command(fault), fast=True, only={6}, options=Options(durations=durations(fault)))
    assert failed(report) == {6}, str(report)
    [message] = report.failed[0].faults
    assert found in message
    assert "--sample-limit SECONDS" in message
