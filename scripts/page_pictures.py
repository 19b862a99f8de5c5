"""Owns the pictures of the page: a server with the default models, a browser that uses it, and one PNG for each view.

It does not know what the views show; it waits for what it needs to see. `--all FOLDER` takes every view, light and
dark, wide and 360 px, for a look at them; without it the pictures of the README are made anew, in docs/images.
"""

import argparse
import http.client
import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
VIEWS: Final = ("cartridges", "models", "playground", "plans", "calls")
WIDE: Final = {"width": 1280, "height": 800}
NARROW: Final = {"width": 360, "height": 740}
ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
PLAN: Final = """# a text goes on; both ends become vectors
write cap:generate-text;gguf
first cap:embed-text;torch
last cap:embed-text;torch
beginning -> write -> story
beginning -> first -> before
story -> last -> after
write.max-tokens = 24
"""
QUESTION: Final = "What is the capital of France?"
FOR_README: Final = (
    ("cartridges", "light", WIDE), ("models", "dark", WIDE), ("playground", "light", WIDE), ("plans", "dark", WIDE),
    ("calls", "light", WIDE), ("calls", "dark", NARROW),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view, light and dark, wide and narrow")
    folder: Path | None = parser.parse_args().all
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("There is no browser; apt-get install chromium brings one.")
    every = [(view, scheme, size) for scheme in ("light", "dark") for size in (WIDE, NARROW) for view in VIEWS]
    with serving() as url, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=list(ARGUMENTS)).new_page()
        page.goto(url)
        use(page, url)
        take(page, FOR_README if folder is None else every, folder or ROOT / "docs" / "images")


@contextmanager
def serving() -> Iterator[str]:
    """A server, until the block ends; its address."""
    command = [str(Path(sys.executable).with_name("cartdeck")), "serve", "--port", "0", "--json", "--grace", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def use(page: Page, url: str) -> None:
    """What a person does before there is something to see."""
    page.set_viewport_size({"width": 1280, "height": 800})
    show(page, "playground")
    page.wait_for_selector("#link-state[data-state=open]")
    for field, value in (("system", "You are a helpful assistant."), ("heat", "0"), ("tokens", "48")):
        page.fill(f"#chat-{field}", value)
    for question in (QUESTION, "And of Italy?"):
        page.fill("#chat-input", question)
        page.keyboard.press("Enter")
        page.wait_for_selector(".message.assistant[aria-busy]")
        page.wait_for_selector(".message.assistant[aria-busy]", state="detached", timeout=120_000)
    show(page, "plans")
    page.fill("#plan-text", PLAN)
    page.wait_for_selector(".graph")
    page.fill("textarea[id^=input]", "Once upon a time")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#view-plans [role=status]:has-text('done')", timeout=240_000)
    for text in ("Tell a very short story.", "Name three rivers of Europe."):
        ask(url, {"max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": text}]})
    show(page, "models")
    page.wait_for_selector("text=/\\d models, /")
    show(page, "cartridges")
    page.click("button[aria-label='Log of gguf']")
    page.wait_for_selector(".line")


def ask(url: str, body: dict[str, object]) -> None:
    """A request like any client's; an answer is not waited for."""
    data = json.dumps({"model": "default", **body}).encode()
    server = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)

    def send() -> None:
        server.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
        server.getresponse().read()
        server.close()

    threading.Thread(target=send).start()


def show(page: Page, view: str) -> None:
    page.click(f"nav a[href='#/{view}']")
    page.wait_for_selector(f"#view-{view}:not([hidden])")


def take(page: Page, pictures: Sequence[tuple[str, str, dict[str, int]]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for view, scheme, size in pictures:
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        show(page, view)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(600)
        path = folder / f"page-{view}-{scheme}-{size['width']}.png"
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, optimize=True)
        print(f"{path}  {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
