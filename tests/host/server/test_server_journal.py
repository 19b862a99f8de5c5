"""What a server remembers of calls and logs stays within its bounds, whatever comes."""

from cartdeck.server.live.journal import MOST_ENDED, Journal, Stage, stage_of
from cartdeck.server.live.log_tails import MOST_LINES, LogTails
from cartdeck_protocol.errors import Code, failure


def test_the_last_calls_that_ended_are_kept_and_all_that_are_open() -> None:
    journal = Journal()
    opened = [journal.begin("chat", f"model {number}") for number in range(300)]
    for entry in opened[:250]:
        journal.finish(entry, {"usage": {"completion_tokens": 3, "secret": 1}})
    assert journal.open_calls == 50
    found = journal.since(0)
    assert [one.number for one in found] == [*range(251 - MOST_ENDED, 251), *range(251, 301)]
    assert found[0].usage == {"completion_tokens": 3}


def test_only_what_changed_is_told() -> None:
    journal = Journal()
    first, second = journal.begin("chat"), journal.begin("chat")
    seen = journal.version
    journal.advance(second, Stage.LOAD)
    assert journal.since(seen) == [second]
    seen = journal.version
    journal.advance(second, Stage.LOAD)  # no news
    assert journal.since(seen) == []
    journal.fail(first, failure(Code.CANCELLED, "enough"))
    journal.finish(first, {})  # an end comes once
    assert [one.state for one in journal.since(seen)] == ["cancelled"]


def test_an_entry_stays_small_however_often_its_stage_changes() -> None:
    journal = Journal()
    entry = journal.begin("c" * 10_000, "m" * 10_000)
    for _ in range(100):
        journal.advance(entry, Stage.LOAD)
        journal.advance(entry, Stage.FIRST)
    journal.tell(entry, "x" * 10_000, fraction=0.5, work=1, total=2)
    journal.fail(entry, failure(Code.HANDLER_FAILED, "x" * 10_000, details={"remedy": "y" * 10_000}))
    shown = entry.to_plain()
    assert max(map(len, shown["error"].values())) <= 400
    assert len(shown["spans"]) <= 16
    assert max(len(shown[name]) for name in ("cap", "model", "message")) <= 400


def test_phases_that_nobody_knows_are_of_computing() -> None:
    phases = ("queued", "obtaining", "load", "prompt", "anything")
    assert [stage_of(one) for one in phases] == ["queue", "obtain", "load", "first", "first"]


def test_a_tail_keeps_its_last_lines_and_cuts_long_ones() -> None:
    tails = LogTails()
    for number in range(MOST_LINES + 500):
        tails.add("one", "call", "info", f"line {number}")
    tails.add("other", "call", "info", "y" * 100_000)
    lines = tails.since("one", 0)
    assert (len(lines), lines[0].text, lines[-1].text) == (MOST_LINES, "line 500", f"line {MOST_LINES + 499}")
    assert tails.since("one", lines[-1].number) == []
    assert len(tails.since("other", 0)[0].text) == 2000
    assert tails.since("none", 0) == []
