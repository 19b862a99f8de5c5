"""What a hub refuses, and what cannot be reached: one code each, a way out in the message, and no token anywhere."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cartdeck_models.hub.refusal import Asked, Refusal, refused
from cartdeck_protocol.errors import CartdeckError, Code

SPEC = "hf:owner/name:m.gguf"
GOOD, MEMBER = "hf_goodtoken", "hf_membertoken"


@pytest.fixture
def repository(hub) -> Any:
    return hub.add({"m.gguf": b"GGUF" * 100, "config.json": b"{}"}, members={MEMBER})


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cartdeck_models.hub.patience.FIRST_WAIT_S", 0.01)


@pytest.mark.parametrize(
    ("how", "token", "spec", "code"),
    [
        ({"needs_token": True}, None, SPEC, Code.AUTH_REQUIRED),
        ({"needs_token": True}, "hf_badtoken", SPEC, Code.AUTH_REQUIRED),
        ({"is_gated": True}, None, SPEC, Code.GATED),
        ({"is_gated": True}, GOOD, SPEC, Code.GATED_NOT_ACCEPTED),
        ({}, None, "hf:owner/none", Code.AUTH_REQUIRED),
        ({}, GOOD, "hf:owner/none", Code.MODEL_NOT_FOUND),
        ({}, None, "hf:owner/name@none:m.gguf", Code.REVISION_NOT_FOUND),
        ({}, None, "hf:owner/name@" + "0" * 40 + ":m.gguf", Code.REVISION_NOT_FOUND),
        ({}, None, "hf:owner/name:n.gguf", Code.FILE_NOT_FOUND),
    ],
)
def test_each_refusal_has_its_code(desk, repository, monkeypatch, how, token, spec: str, code: Code) -> None:
    for key, value in how.items():
        setattr(repository, key, value)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    error = desk.refused(spec)

    assert error.code is code
    assert error.argument == "model"
    assert "owner/n" in error.message
    assert token is None or token not in json.dumps([error.to_wire(), [str(told) for told in desk.told]])


def test_a_gated_model_names_the_page_to_visit(desk, hub, repository, monkeypatch) -> None:
    repository.is_gated = True
    monkeypatch.setenv("HF_TOKEN", GOOD)
    error = desk.refused(SPEC)

    assert error.details["page"] == f"{hub.url}/owner/name"
    assert f"{hub.url}/owner/name" in error.message


def test_a_member_of_a_gated_model_gets_it(desk, repository, monkeypatch) -> None:
    repository.is_gated = True
    monkeypatch.setenv("HF_TOKEN", MEMBER)

    assert desk.obtain(SPEC).path.read_bytes() == b"GGUF" * 100


def test_a_missing_revision_lists_those_that_are_near(desk, repository, hub) -> None:
    commit = repository.branches["main"]
    repository.tags.update({"v1.0": commit, "v1.1": commit})
    error = desk.refused("hf:owner/name@v1.2:m.gguf")

    assert error.code is Code.REVISION_NOT_FOUND
    assert "v1.1" in error.message
    assert set(error.details["near"]) == {"v1.0", "v1.1"}


def test_a_missing_file_lists_those_that_are_near(desk, repository) -> None:
    error = desk.refused("hf:owner/name:n.gguf")

    assert "m.gguf" in error.message


def test_a_rate_limit_is_waited_for_as_long_as_it_says_and_told(desk, hub, repository) -> None:
    repository.answers = [(429, {"Retry-After": "2"}), (429, {"Retry-After": "2"})]
    started_s = time.monotonic()
    found = desk.obtain(SPEC)

    assert time.monotonic() - started_s >= 4
    assert "rate_limited" in desk.phases()
    assert any("2 s" in told.message for told in desk.told if told.phase == "rate_limited")
    hub.requests.clear()
    assert desk.obtain(f"hf:owner/name@{found.revision}:m.gguf").path == found.path
    assert hub.requests == []


def test_a_rate_limit_on_the_bytes_is_waited_for_too(desk, hub, repository) -> None:
    hub.file("m.gguf").answers = [(429, {"Retry-After": "1"}), (503, {"Retry-After": "1"})]
    started_s = time.monotonic()

    assert desk.obtain(SPEC).path.read_bytes() == b"GGUF" * 100
    assert time.monotonic() - started_s >= 2
    assert "rate_limited" in desk.phases()


def test_a_rate_limit_without_end_is_told_with_the_wait(desk, repository, fast: None) -> None:
    repository.answers = [(429, {})] * 20
    error = desk.refused(SPEC)

    assert error.code is Code.RATE_LIMITED


def test_a_wait_that_nobody_would_wait_for_is_told_at_once(desk, repository) -> None:
    repository.answers = [(429, {"Retry-After": "86400"})]
    error = desk.refused(SPEC)

    assert (error.code, error.details["retry_after_s"]) == (Code.RATE_LIMITED, 86400)


def test_a_hub_that_is_unwell_for_a_moment_is_asked_again(desk, repository, fast: None) -> None:
    repository.answers = [(502, {}), (500, {})]

    assert desk.obtain(SPEC).path.exists()


def test_a_hub_that_is_unwell_for_long_is_told(desk, hub, repository, fast: None) -> None:
    repository.answers = [(503, {})] * 20
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert "503" in error.message


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is ours, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{port}", "http://no-such-host.invalid"])
def test_a_hub_that_cannot_be_reached_is_named_soon(desk, endpoint: str, closed_port: int) -> None:
    desk.set(endpoint=endpoint.format(port=closed_port))
    started_s = time.monotonic()
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert error.details["host"] in desk.hub_settings.endpoint
    assert error.details["host"] in error.message
    assert time.monotonic() - started_s < 60


@pytest.mark.parametrize("page", [b"<html>Please log in.</html>", b"[1, 2]", b'{"sha": "../../x"}', b"null"])
def test_something_that_is_no_hub_is_told(desk, hub, page: bytes) -> None:
    hub.page = page
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert "HF_ENDPOINT" in error.message


def test_a_listing_that_continues_elsewhere_is_not_followed(desk, hub, repository) -> None:
    repository.page_size = 1
    hub.next_page_origin = hub.storage_url
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert not [request for request in hub.requests if request.origin == "storage"]


def test_a_listing_in_pages_is_read_to_its_end(desk, hub) -> None:
    hub.add({f"{number}.txt": b"x" for number in range(25)} | {"m.gguf": b"GGUF"}, page_size=7)

    assert desk.obtain(SPEC).path.read_bytes() == b"GGUF"
    assert len(hub.asked_for("/tree/")) == 4


def test_the_token_goes_to_the_hub_and_not_where_it_redirects(desk, hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD)
    hub.add({"m.gguf": os.urandom(300_000)}, needs_token=True)
    desk.obtain(SPEC)
    origins = {request.origin: request.headers.get("authorization") for request in hub.requests}

    assert origins == {"hub": f"Bearer {GOOD}", "storage": None}


def test_a_redirect_to_another_host_gets_no_token_and_is_followed(desk, hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD)
    hub.add({"m.gguf": os.urandom(300_000)}, needs_token=True)
    storage = hub.storage_url.replace("127.0.0.1", "localhost")
    commit = hub.repositories["owner/name"].branches["main"]
    hub.file("m.gguf").redirects_to = f"{storage}/owner/name/{commit}/m.gguf?signature={hub.sign()}"

    assert desk.obtain(SPEC).path.read_bytes() == hub.file("m.gguf").data
    assert all("authorization" not in request.headers for request in hub.requests if request.origin == "storage")


def test_a_redirect_to_something_that_is_not_http_is_refused(desk, hub, repository) -> None:
    hub.file("m.gguf").redirects_to = "file:///etc/passwd"

    assert desk.refused(SPEC).code is Code.ENDPOINT_UNREACHABLE


def test_a_redirect_in_a_circle_ends(desk, hub, repository) -> None:
    commit = repository.branches["main"]
    hub.file("m.gguf").redirects_to = f"{hub.url}/owner/name/resolve/{commit}/m.gguf"

    assert desk.refused(SPEC).code is Code.ENDPOINT_UNREACHABLE


@pytest.mark.parametrize("name", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_OIDC_RESOURCE"])
def test_a_token_that_cannot_be_had_is_told_and_not_shown(hub, repository, monkeypatch, tmp_path, name: str) -> None:
    value = {"HF_TOKEN": "hf_töken", "HF_TOKEN_PATH": str(tmp_path), "HF_OIDC_RESOURCE": "owner/name"}[name]
    settings = {"HF_ENDPOINT": hub.url, "CARTDECK_MODELS_DIR": str(tmp_path), name: value}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, SPEC],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip

    assert "AUTH_REQUIRED" in done.stderr
    assert "hf_t" not in done.stdout + done.stderr
    assert not hub.requests


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from pathlib import Path
from cartdeck_models.library import Library
from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
told = lambda advance: print(advance)
for spec in sys.argv[1:]:
    try:
        print(Library(Settings.from_environment()).obtain(parse_spec(spec), Task(told, lambda: False)))
    except Exception as error:
        logging.exception("failed: %s", getattr(error, "to_wire", lambda: error)())
"""


def test_no_token_and_no_signature_is_in_any_log_message_or_trace(hub, repository, tmp_path) -> None:
    hub.add({"large.gguf": os.urandom(300_000)}, name="owner/large", needs_token=True)
    hub.add({"m.gguf": b"x"}, name="owner/gated", is_gated=True)
    settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": GOOD, "CARTDECK_MODELS_DIR": str(tmp_path)}
    specs = ["hf:owner/large:large.gguf", "hf:owner/gated:m.gguf", "hf:owner/none", "hf:owner/name:none"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *specs],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip

    assert "GATED_NOT_ACCEPTED" in done.stderr
    assert "resumed_bytes=0" in done.stdout
    assert GOOD not in done.stdout + done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in kept if GOOD.encode() in path.read_bytes()]


def test_what_the_hub_says_is_shown_without_a_token_and_not_at_length() -> None:
    asked = Asked("https://user:pass@hub.example/x", "owner/name")
    words = f"no, Bearer {GOOD} and hf_othersecret: " + "x" * 1000
    error: CartdeckError = refused(
        Refusal(403, "https://hub.example/y?signature=s3cret", {"x-error-message": words}), asked
    )

    assert error.code is Code.AUTH_REQUIRED
    assert "hf_" not in error.message
    assert "s3cret" not in error.message
    assert len(error.message) < 600
    assert asked.page == "https://hub.example/x/owner/name"


@pytest.mark.parametrize(
    ("status", "headers", "wait_s"),
    [
        (429, {"retry-after": "7"}, 7.0),
        (503, {"retry-after": "7"}, 7.0),
        (429, {"ratelimit": '"api";r=0;t=55', "retry-after": "7"}, 55.0),
        (429, {"ratelimit": '"api";r=3;t=55', "retry-after": "7"}, 7.0),
        (429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        (429, {"retry-after": "soon"}, None),
        (429, {}, None),
    ],
)
def test_how_long_to_wait_is_read_in_each_form(status: int, headers: dict[str, str], wait_s: float | None) -> None:
    assert Refusal(status, "https://hub.example", headers).retry_after_s == wait_s
