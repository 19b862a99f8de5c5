"""A browser of this machine, driven by Playwright, and pages in it that are watched: they may ask their own server
alone, and no script of theirs may fail.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LIMIT_MS = 30_000
"""How long a page is waited for, on a machine that does much else."""
SERVERS = Path(__file__).parents[1] / "host" / "server" / "conftest.py"


@pytest.fixture(scope="session")
def servers() -> Any:
    """How the tests of the server start one: `serving`, `declare_actor`."""
    pytest.importorskip("starlette", reason="needs the extra server")
    spec = importlib.util.spec_from_file_location("servers_for_pages", SERVERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests of a file."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        driver.expect.set_options(timeout=LIMIT_MS)
        found = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """`opened(url, **options)`: a page on that address, which is watched until the test ends."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_page(url: str, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        own = urlsplit(url).netloc
        page.on("pageerror", lambda error: faults.append(f"a script failed: {error}"))
        page.on("console", lambda said: faults.append(said.text) if is_fault(said) else None)
        page.on("request", lambda asked: None if is_own(asked.url, own) else faults.append(f"it asks {asked.url}"))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def is_fault(said: Any) -> bool:
    """What a page writes when a request is refused is no fault: the page shows it."""
    return said.type in ("error", "warning") and not said.text.startswith("Failed to load resource")


def is_own(url: str, own: str) -> bool:
    return url.startswith(("data:", "blob:")) or urlsplit(url).netloc == own
