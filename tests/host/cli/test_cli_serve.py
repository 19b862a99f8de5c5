"""What `cartdeck serve` says before it starts."""

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
