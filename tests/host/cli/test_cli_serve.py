"""What `cartdeck serve` says before it starts, and when it is to end."""

import logging
import signal

import pytest

from cartdeck.cli import serve
from cartdeck.cli.render import error_text
from cartdeck_protocol.errors import CartdeckError, Code


def test_a_server_without_its_libraries_says_what_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LEFT_OUT", ("sys", "no_such_library"))
    with pytest.raises(CartdeckError) as caught:
        serve._check_installed()
    assert caught.value.code is Code.CARTRIDGE_UNAVAILABLE
    told = " ".join(error_text(caught.value).split())
    assert "needs no_such_library." in told
    assert told.endswith("Install what it needs: pip install 'cartdeck[server]'")


def test_a_stop_says_how_long_open_requests_may_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    words = serve.Words(as_json=False, is_quiet=False)
    try:
        words.stopping(signal.SIGINT, grace_s=10.0)
        words.close()
    finally:
        for handler in set(logging.getLogger().handlers) - set(before):
            logging.getLogger().removeHandler(handler)
    assert capfd.readouterr().err == "stopping: open requests may go on for 10 s; once more ends at once\n"
