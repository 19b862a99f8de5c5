"""The same over TLS, as real hubs speak it: large answers are read from the encrypted connection, cancels shut it."""

import random
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol.errors import Code

SPEC = "hf:owner/name:m.gguf"
DATA = random.Random(41).randbytes(5_000_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"openssl makes no certificate: {done.stderr[-200:]}")
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def hub(fake_hub, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake hub, with TLS on both origins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    yield from fake_hub.serving(context)


@pytest.fixture
def file(hub) -> Any:
    hub.add({"m.gguf": DATA})
    return hub.file("m.gguf")


def test_a_file_arrives_whole_over_tls(desk, hub, file) -> None:
    assert hub.url.startswith("https://")
    assert desk.obtain(SPEC).path.read_bytes() == DATA


def test_a_file_in_ranges_that_are_cut_arrives_whole_over_tls(desk, hub, file, monkeypatch) -> None:
    monkeypatch.setattr("cartdeck_models.hub.transfer.STEP_BYTES", 2 * 1024 * 1024)
    file.bytes_per_connection = 1_200_000

    assert desk.obtain(SPEC).path.read_bytes() == DATA


def test_a_silent_server_is_left_for_a_new_connection_over_tls(desk, hub, file) -> None:
    desk.set(quiet_limit_s=0.5)
    file.stalls_at, file.stalls = 2_000_000, 1

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert "stalled" in desk.phases()


def test_a_cancel_is_heard_while_the_server_is_silent_over_tls(desk, hub, file) -> None:
    desk.set(quiet_limit_s=60.0)
    file.stalls_at = 2_000_000
    threading.Thread(target=lambda: hub.started.wait(30) and desk.is_cancelled.set()).start()

    assert desk.refused(SPEC).code is Code.CANCELLED
    assert hub.wait_idle(30)


def test_a_certificate_that_nobody_vouches_for_is_told_and_named(desk, hub, file, monkeypatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert "certificate" in error.message.lower()
