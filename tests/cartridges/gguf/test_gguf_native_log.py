"""What the engine says is kept in whole lines, with levels, and never in floods."""

from cartdeck_gguf.native_log import LINE_CHARACTERS, SECTION_LINES, TAIL_LINES, NativeLog

DEBUG, INFO, WARNING, ERROR, CONTINUED = 1, 2, 3, 4, 5


def test_pieces_of_a_line_become_one_line_of_the_level_that_began_it() -> None:
    written: list[str] = []
    log = NativeLog(written.append)
    log.add(WARNING, "half ")
    log.add(CONTINUED, "and half\n")
    log.add(INFO, "one\ntwo\n")
    log.add(DEBUG, "never seen\n")
    log.add(ERROR, "no end")
    assert log.tail() == ["warning: half and half", "info: one", "info: two", "error: no end"]
    assert log.errors() == ["no end"]
    assert written == [f"llama.cpp {line}" for line in log.tail()]


def test_a_new_level_ends_a_line_that_had_no_end() -> None:
    log = NativeLog(lambda _: None)
    log.add(INFO, "loading")
    log.add(ERROR, "failed\n")
    assert log.tail() == ["info: loading", "error: failed"]


def test_a_flood_is_counted_and_not_written() -> None:
    written: list[str] = []
    log = NativeLog(written.append)
    for number in range(5000):
        log.add(INFO, f"line {number}\n")
    log.add(ERROR, "x" * 100_000)
    assert len(log.tail()) == TAIL_LINES
    assert len(written) == SECTION_LINES
    assert max(map(len, log.tail())) <= LINE_CHARACTERS + len("error: ")
    log.begin_section()
    assert written[-1] == "llama.cpp info: 4,701 more lines were left out"
    assert log.tail() == []


def test_a_listener_hears_warnings_and_errors_of_its_section_alone() -> None:
    heard: list[tuple[str, str]] = []
    log = NativeLog(lambda _: None)
    log.add(ERROR, "before\n")
    log.begin_section(lambda level, line: heard.append((level, line)))
    log.add(INFO, "fine\n")
    log.add(WARNING, "careful\n")
    log.add(ERROR, "broken\n")
    log.begin_section()
    log.add(ERROR, "after\n")
    assert heard == [("warning", "careful"), ("error", "broken")]
