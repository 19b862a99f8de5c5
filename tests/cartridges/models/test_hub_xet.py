"""Xet that does not work out: access refused, storage that answers nonsense or nothing; plain HTTP brings the file.

A whole transfer through Xet needs its storage service, which no test here has: what it brings is hashed like the rest.
"""

import random
import time
from typing import Any

import pytest

from cartdeck_protocol.errors import Code

SPEC = "hf:owner/name:m.gguf"
DATA = random.Random(21).randbytes(1_500_000)


@pytest.fixture
def file(hub, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("cartdeck_models.hub.fetcher.LEAST_BYTES", 1)
    hub.add({"m.gguf": DATA})
    hub.file("m.gguf").has_xet = True
    return hub.file("m.gguf")


def storage_gets(hub, prefix: str) -> list[Any]:
    return [request for request in hub.requests if request.origin == "storage" and request.path.startswith(prefix)]


def test_where_the_hub_gives_no_access_to_xet_plain_http_brings_the_file(desk, hub, file) -> None:
    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert len(hub.asked_for("/xet-read-token/")) == 1
    assert len(storage_gets(hub, "/owner/name")) == 1


def test_where_xet_s_storage_refuses_plain_http_brings_the_file(desk, hub, file) -> None:
    hub.xet_token_status = 200

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert storage_gets(hub, "/xet")
    assert desk.leftovers() == []


def test_xet_that_stands_still_is_said_and_left_once_for_plain_http(desk, hub, file) -> None:
    hub.xet_token_status, hub.xet_stalls = 200, True
    desk.set(quiet_limit_s=2.0)

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    stalled = [told for told in desk.told if told.phase == "stalled"]
    assert "Xet" in stalled[0].message
    assert storage_gets(hub, "/owner/name")
    assert len(hub.asked_for("/xet-read-token/")) <= 4  # ours, and the library's, which may try again
    works = [told.work for told in desk.told if told.work is not None]
    assert works == sorted(works)


def test_where_plain_http_stands_still_too_it_ends_typed(desk, hub, file) -> None:
    hub.xet_token_status, hub.xet_stalls = 200, True
    file.stalls_at = 0
    desk.set(quiet_limit_s=1.0)

    assert desk.refused(SPEC).code is Code.DOWNLOAD_STALLED


def test_a_cancel_ends_a_transfer_through_xet(desk, hub, file) -> None:
    hub.xet_token_status, hub.xet_stalls = 200, True
    desk.set(quiet_limit_s=60.0)
    started_s = time.monotonic()
    desk.is_cancelled = _After(lambda: storage_gets(hub, "/xet"))

    assert desk.refused(SPEC).code is Code.CANCELLED
    assert time.monotonic() - started_s < 30


@pytest.mark.parametrize("why", ["setting", "size"])
def test_xet_is_not_asked_where_it_is_turned_off_or_does_not_help(desk, hub, file, monkeypatch, why: str) -> None:
    if why == "setting":
        desk.set(uses_xet=False)
    else:
        monkeypatch.setattr("cartdeck_models.hub.fetcher.LEAST_BYTES", len(DATA) + 1)

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert not hub.asked_for("/xet-read-token/")


def test_the_token_does_not_go_to_xet_s_storage(desk, hub, file, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_goodtoken")
    hub.xet_token_status = 200
    desk.obtain(SPEC)

    assert storage_gets(hub, "/xet")
    assert "hf_goodtoken" not in str([request.headers for request in hub.requests if request.origin == "storage"])


class _After:
    """An event that is set once `question` has an answer."""

    def __init__(self, question: Any) -> None:
        self.is_set = lambda: bool(question())
