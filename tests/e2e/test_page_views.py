"""The page in a real browser, on a real server: each view, by mouse and keyboard, wide and narrow, dark and light."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

VIEWS = ("cartridges", "models", "playground", "plans", "calls")
DATA = Path(__file__).parents[1] / "data"
IMAGE = DATA / "gguf" / "shapes" / "red_circle.png"
SOUND = DATA / "audio" / "quick_brown_fox.flac"
HOSTILE = "act:tokens=1,<img src=x onerror=alert(1)>/<script>alert(1)</script>"
MODELS = {
    "talker": "act:tokens=4000,pace=0.02",
    "brief": "act:tokens=3",
    "long": "act:tokens=400,pace=0.002",
    "gone": "act:tokens=5",
    "fetched": "act:obtain=60",
    "loading": "act:load=60",
    "broken": "act:fail=HASH_MISMATCH",
}
LIVE = "#link-state[data-state=open]"


@pytest.fixture(scope="module")
def server(servers: Any, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    named = [part for name, spec in MODELS.items() for part in ("--model", f"{name}={spec}")]
    environment = servers.declare_actor(tmp_path_factory.mktemp("pages"))
    with servers.serving(environment, "--grace", "0.5", *named) as found:
        yield found


def chat(server: Any, model: str) -> None:
    server.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "Hello"}]})


def resize(page: Any, width: int, height: int) -> None:
    """The page's size from now on, which it knows of itself a moment later."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function("([width, height]) => innerWidth === width && innerHeight === height", arg=[width, height])


def go(page: Any, view: str) -> None:
    page.click(f"nav a[href='#/{view}']")
    page.wait_for_selector(f"#view-{view}:not([hidden])")


def test_cartridges_and_their_sessions_are_shown_as_they_come(opened: Any, server: Any) -> None:
    page = opened(server.url)
    page.wait_for_selector("article >> text=echo")
    expect(page).to_have_title("Cartridges · cartdeck")
    chat(server, "brief")
    row = page.locator("tr", has_text="act:tokens=3")
    row.locator(".state[data-state=ready]").wait_for()
    expect(row.locator("td[data-label=Memory]")).to_have_text(re.compile(r"\d MiB"))  # looked at once a second
    page.fill("#cartridge-filter", "act:tokens=3")
    page.wait_for_selector("#cartridge-found:has-text('1 session in 1 cartridge')")
    expect(page.locator("article:visible")).to_have_count(1)
    page.fill("#cartridge-filter", "")
    page.click("button[aria-label='Log of echo']")
    arguments = {"action": "log-lines", "amount": 40}
    server.post("/caps/call", {"cap": "misbehave", "arguments": arguments, "stream": False})
    page.wait_for_selector(".line >> text=line 39")
    page.fill("[aria-label='Show lines with']:visible", "line 3")
    page.wait_for_selector("text=11 of 40 lines")


def test_a_load_is_shown_with_its_phases_and_a_failed_one_with_its_remedy(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/models")
    page.wait_for_selector(LIVE)

    def card(name: str) -> Any:
        return page.locator("#view-models li", has=page.locator(f"h3:text-is('{name}')"))

    asked = {"messages": [{"role": "user", "content": "Hello"}]}
    waiting = [server.send("/v1/chat/completions", {**asked, "model": name}) for name in ("fetched", "loading")]
    card("fetched").locator(".badge:text-is('obtaining')").wait_for()
    card("fetched").locator(".phase[data-stage=obtain][data-state=unknown]").wait_for()
    card("loading").locator(".badge:text-is('loading')").wait_for()
    card("loading").locator(".phase[data-stage=obtain][data-state=done]").wait_for()
    card("loading").locator(".phase[data-stage=load][data-state=unknown]").wait_for()
    for connection in waiting:
        connection.close()
    card("loading").locator(".phases").wait_for(state="hidden")
    chat(server, "brief")
    card("brief").locator(".badge:text-is('loaded')").wait_for()
    chat(server, "broken")
    card("broken").locator(".badge:text-is('failed')").wait_for()
    expect(card("broken")).to_contain_text("Fetch the file again")


def test_a_model_that_answered_and_is_gone_since_is_not_called_loaded(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/models")
    badge = page.locator("#view-models li", has=page.locator("h3:text-is('gone')")).locator(".badge")
    chat(server, "gone")
    expect(badge).to_have_text("loaded")
    (pid,) = [one["pid"] for one in server.get("/stats")["sessions"] if "act:tokens=5" in one["instance"]]
    os.kill(pid, signal.SIGKILL)
    expect(badge).to_have_text("unloaded")
    assert server.get("/v1/models/gone")["state"] == "unloaded"
    chat(server, "gone")
    expect(badge).to_have_text("loaded")


def test_a_model_is_added_where_there_is_a_catalog_and_else_one_is_told_how(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/models")
    page.click("text=Add a model from a hub")
    page.fill("#add-repository", "owner/name")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view-models .problem:has-text('--catalog FILE')")


def test_models_on_this_machine_are_listed_or_there_are_none(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/models")
    listed, none = page.locator("[aria-label='Models on this machine']"), page.locator("text=Nothing was fetched yet")
    listed.or_(none).locator("visible=true").first.wait_for()


def test_a_dialogue_comes_word_by_word_and_esc_stops_it(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    page.select_option("#panel-chat select", "talker")
    page.fill("#chat-input", "Hello")
    page.keyboard.press("Enter")
    answer = page.locator(".message.assistant").last
    answer.locator(".text:has-text('t5')").wait_for()
    expect(answer).to_have_attribute("aria-busy", "true")
    page.keyboard.press("Escape")
    answer.locator(".note:has-text('stopped')").wait_for()
    server.wait_for(lambda: not server.open_calls("act:tokens=4000"))
    page.select_option("#panel-chat select", "brief")
    page.fill("#chat-input", "More")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    page.locator(".message.assistant .note:has-text('3 tokens')").wait_for()
    roles = [one["role"] for one in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    page.wait_for_selector("#announcements:text('The answer is complete: t0 t1 t2')", state="attached")


def test_a_long_answer_is_followed_to_its_end_above_the_field_for_the_next_message(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    for width in (360, 1280):
        resize(page, width, 640)
        page.select_option("#panel-chat select", "long")
        page.fill("#chat-input", "Hello")
        page.keyboard.press("Enter")
        page.locator(".message.assistant").last.locator(".note:has-text('400 tokens')").wait_for()
        end, field = page.evaluate(
            "[[...document.querySelectorAll('.message.assistant')].at(-1), document.querySelector('.composer')]"
            ".map((one) => one.getBoundingClientRect()).map((box, index) => index ? box.top : box.bottom)"
        )
        assert 0 < end <= field
        page.click("#panel-chat >> text=New dialogue")


def test_an_answer_that_goes_on_behind_another_view_scrolls_nothing(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    resize(page, 360, 200)
    page.select_option("#panel-chat select", "talker")
    page.fill("#chat-input", "Hello")
    page.keyboard.press("Enter")
    page.locator(".message.assistant .text:has-text('t5')").wait_for()
    page.evaluate("location.hash = '#/models'")
    page.locator("#view-models").wait_for()
    page.evaluate("scrollTo(0, 0)")
    heard = page.evaluate("document.querySelector('.message.assistant .text').textContent.length")
    page.wait_for_function(
        "(heard) => document.querySelector('.message.assistant .text').textContent.length > heard + 60", arg=heard
    )
    assert page.evaluate("[scrollY, document.documentElement.scrollHeight > innerHeight + 100]") == [0, True]


def test_an_image_goes_along_with_a_message(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    page.select_option("#panel-chat select", "brief")
    page.set_input_files("#panel-chat input[type=file]", SOUND)
    page.wait_for_selector(".problem:has-text('is no image')")
    page.set_input_files("#panel-chat input[type=file]", IMAGE)
    page.wait_for_selector(".tray img")
    page.fill("#chat-input", "What is it?")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click("text=Send")
    parts = asked.value.post_data_json["messages"][0]["content"]
    assert parts[0] == {"type": "text", "text": "What is it?"}
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    page.wait_for_selector(".message.user .picture")


def test_a_recording_becomes_a_transcript(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    page.click("#tab-transcribe")
    page.select_option("#panel-transcribe select >> nth=0", "brief")
    page.click("#panel-transcribe >> text=Transcribe")
    page.wait_for_selector(".problem:has-text('No recording is chosen')")
    page.set_input_files("#audio-file", SOUND)
    page.click("#panel-transcribe button[type=submit]")
    page.wait_for_selector(f".transcript >> text={SOUND.stat().st_size} bytes")
    expect(page.locator(".transcript li")).to_have_count(2)


def test_texts_are_compared_by_the_cosine_of_their_vectors(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/playground")
    page.wait_for_selector(LIVE)
    page.focus("#tab-chat")
    page.keyboard.press("End")
    page.select_option("#panel-compare select", "brief")
    page.fill("#compare-texts", "one\ntwo\n\nthree")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".cosines tbody td")).to_have_text(["1.000"] * 9)
    page.fill("#compare-texts", "alone")
    page.click("#panel-compare >> text=Compare")
    page.wait_for_selector(".problem:has-text('expected 2 to 16')")


def test_a_plan_is_drawn_as_it_is_written_and_its_steps_change_as_it_runs(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/plans")
    page.click("text=An example")
    page.wait_for_selector(".graph .box.step")
    page.fill("textarea[id^=input]", "hello")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".card pre:has-text('\"bytes\": 5')")
    expect(page.locator(".box.step[data-state=done]")).to_have_count(2)
    page.fill("#plan-text", "() -> work -> report\nwork.steps = 1000\n")
    page.wait_for_selector(".graph .box text:text-is('work on echo')")
    page.click("#view-plans button:text-is('Run')")
    page.wait_for_selector(".box.step[data-state=running]")
    page.keyboard.press("Escape")
    page.wait_for_selector(".box.step[data-state=cancelled]")
    expect(page.locator("#view-plans [role=status]")).to_have_text("stopped")
    page.fill("#plan-text", "() -> wrok -> report\n")
    page.wait_for_selector(".graph.stale, .stale .graph")  # what the plan before gave is not shown beside the error
    expect(page.locator("#view-plans [role=status]")).to_have_text("")


def test_an_error_says_where_and_what_to_do(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/plans")
    page.fill("#plan-text", "words -> ecko -> copied")
    problem = page.locator("#view-plans .problem")
    for words in ("NO_SUCH_CAP", "line 1, column 10", "echo"):
        expect(problem).to_contain_text(words)
    go(page, "playground")
    page.select_option("#panel-chat select", "broken")
    page.fill("#chat-input", "Hello")
    page.keyboard.press("Enter")
    problem = page.locator("#panel-chat .problem")
    for words in ("HASH_MISMATCH", "Fetch the file again"):
        expect(problem).to_contain_text(words)
    expect(page.locator("#chat-input")).to_have_value("Hello")


def test_the_last_calls_are_bars_of_their_stages_and_hostile_names_are_text(opened: Any, server: Any) -> None:
    page = opened(f"{server.url}/#/calls")
    page.wait_for_selector(LIVE)
    chat(server, HOSTILE)
    row = page.locator(".calls > li", has_text="onerror")
    row.locator(".badge:text-is('done')").wait_for()
    expect(row.locator("strong")).to_have_text(HOSTILE)
    for stage in ("queue", "tokens"):
        expect(row.locator(f".part[data-stage={stage}]").first).to_be_attached()
    expect(row.locator(".bar")).to_have_attribute("aria-label", re.compile(r"queue \d"))
    go(page, "cartridges")
    page.wait_for_selector("tr:has-text('script')")
    expect(page.locator("main img, main script")).to_have_count(0)


def test_a_server_with_keys_asks_for_one_and_says_when_it_is_wrong(opened: Any, servers: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-key-of-ours\n")
    with servers.serving({}, "--grace", "0.2", "--api-key-file", str(tmp_path / "keys")) as guarded:
        page = opened(guarded.url)
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.press("Escape")
        page.fill("#key-input", "not-that-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-problem:has-text('wrong')")
        page.fill("#key-input", "a-key-of-ours")
        page.keyboard.press("Enter")
        page.wait_for_selector(LIVE)
        page.reload()
        page.wait_for_selector(LIVE)


def test_keys_lead_everywhere_and_focus_is_seen(opened: Any, server: Any) -> None:
    page = opened(server.url)
    page.wait_for_selector("article")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    names = [tabbed(page) for _ in range(9)]
    assert names[:2] == ["Theme: auto", "Keys"]
    assert [name.split()[0] for name in names[2:7]] == ["Cartridges", "Models", "Playground", "Plans", "Calls"]
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.wait_for_selector(f"#title-{view}:focus")
        page.wait_for_selector(f"nav a[href='#/{view}'][aria-current=page]")
    page.keyboard.press("/")
    page.wait_for_selector("#call-filter:focus")
    page.keyboard.type("1?t")
    expect(page.locator("#call-filter")).to_have_value("1?t")
    page.focus("#title-calls")
    page.keyboard.press("?")
    page.wait_for_selector("#help-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help-dialog", state="hidden")
    page.keyboard.press("t")
    page.wait_for_selector("#theme:has-text('Theme: light')")


def tabbed(page: Any) -> str:
    """The name of what the next tab leads to, whose outline must be there."""
    page.keyboard.press("Tab")
    name, outline = page.evaluate(
        "[document.activeElement.innerText || document.activeElement.id,"
        " getComputedStyle(document.activeElement).outlineStyle]"
    )
    assert outline != "none", name
    return str(name)


def test_every_control_has_a_name(opened: Any, server: Any) -> None:
    page = opened(server.url)
    page.wait_for_selector("article")
    for view in VIEWS:
        go(page, view)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, textarea, [role=group], [role=log]")]
                 .filter((one) => one.checkVisibility() && !(one.getAttribute("aria-hidden") === "true"))
                 .filter((one) => !(one.innerText?.trim() && one.matches("button, a")) && !one.labels?.length
                   && !one.getAttribute("aria-label") && !one.getAttribute("aria-labelledby"))
                 .map((one) => one.outerHTML)"""
        )
        assert nameless == [], view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_its_words_stand_out(opened: Any, server: Any, scheme: str) -> None:
    page = opened(server.url, color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_selector("article")
    for width in (360, 1280):
        resize(page, width, 740)
        for view in VIEWS:
            go(page, view)
            for tab in page.locator(f"#view-{view} [role=tab]").all() or [None]:
                if tab is not None:
                    tab.click()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, tab)
                assert page.evaluate(FAINT) == [], (view, width)
    assert page.evaluate("getComputedStyle(document.querySelector('.fill') ?? document.body).animationName") == "none"


FAINT = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (parts) => {
    const curve = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map((one) => curve(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return rgb(getComputedStyle(document.documentElement).backgroundColor);
  };
  const faint = [];
  const words = "h1, h2, h3, p, button, a, label, th, td, dt, dd, strong, span";
  for (const node of document.querySelectorAll(words)) {
    if (!node.checkVisibility() || node.disabled || !node.textContent.trim()) continue;
    const [one, other] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) faint.push(`${node.outerHTML.slice(0, 90)}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""
"""Words whose contrast with what is behind them is below WCAG's 4.5."""
