"""Large weights lie in large pages where the system has them, small and very large models stay in their files."""

import re
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

import pytest

from cartdeck_gguf import loading
from cartdeck_gguf.large_pages import ask_for_large_pages, own_memory, page_bytes, without
from cartdeck_modelkit.gguf.header import read_header

SIZE = 16 * 1024 * 1024


def test_what_is_new_is_what_was_not_known() -> None:
    known = [(10, 20), (30, 40)]
    assert without([(0, 50)], known) == [(0, 10), (20, 30), (40, 50)]
    assert without([(12, 18), (30, 40)], known) == []
    assert without([(15, 35), (60, 70)], known) == [(20, 30), (60, 70)]
    assert without([(5, 6)], []) == [(5, 6)]


def large_bytes() -> int:
    """How much memory of this process is in large pages."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return 1024 * sum(int(size) for size in re.findall(r"AnonHugePages:\s+(\d+) kB", text))


@pytest.mark.skipif(not page_bytes(), reason="this system gives no large pages")
def test_memory_that_came_since_gets_large_pages_as_it_is_written_to() -> None:
    before, large_before = own_memory(), large_bytes()
    with mmap(-1, SIZE, flags=0x22) as memory:  # private and anonymous, as an allocator's
        assert SIZE // 2 <= ask_for_large_pages(before) <= 4 * SIZE
        memory[:] = b"\1" * SIZE
        assert large_bytes() - large_before >= SIZE // 2


def test_a_small_model_stays_in_its_file_and_one_larger_than_half_of_the_memory(
    real_model: Path, write_gguf: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loading.is_better_mapped([read_header(write_gguf())])
    headers = [read_header(real_model)]
    assert loading.is_better_mapped(headers) is not bool(page_bytes())
    monkeypatch.setattr(loading, "available_memory_bytes", lambda: 2 * loading.weights_of(headers) - 2)
    assert loading.is_better_mapped(headers)
