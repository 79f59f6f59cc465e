"""The page in a real browser: `pip install playwright`, and a Chromium in PATH or `playwright install chromium`.

Pictures of what it looked like are left in build/page/.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import CALLS, Scripted

from thalweg.outputs import RequestOutput

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
PICTURES = Path(__file__).parents[3] / "build" / "page"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "headless-shell"))), None)
FLAGS = ["--no-sandbox", "--headless=shell", "--disable-gpu"]
TOOLS = '{"type": "function", "function": {"name": "%s", "parameters": {"type": "object"}}}'
MARKDOWN = """<think>
The reader wants to know how rivers move.
</think>

A river's **thalweg** is the line of its deepest points. Water runs *fastest* there, so:

1. The outer bank erodes
2. The inner bank collects sand

| bend | speed |
|---|---|
| outer | 1.8 m/s |

```python
def thalweg(section):
    return min(range(len(section)), key=section.__getitem__)
```

<img src=x onerror="document.title='taken'"> [no](javascript:alert(1)) [yes](https://example.org)
"""


class Slow(Scripted):
    async def _tokens(self, *given: Any) -> AsyncGenerator[RequestOutput, None]:
        async for output in super()._tokens(*given):
            await asyncio.sleep(0.01)
            yield output


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=BROWSER, args=FLAGS)
        except sync_api.Error as e:
            pytest.skip(f"no Chromium that starts: {str(e).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("console", lambda m: problems.append(m.text) if "Content Security" in m.text else None)
    yield page
    assert problems == []
    context.close()


def say(page: Any, text: str) -> None:
    page.fill("#ask", text)
    page.keyboard.press("Enter")


def done(page: Any) -> None:
    page.wait_for_selector("html:not(.busy) .msg.assistant:last-of-type footer")


def picture(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def test_a_conversation(start: Any, page: Any) -> None:
    """Send, stream, reasoning, Markdown that stays text, tools and their results, retry, edit, and all of it after a reload."""
    running = start(Slow(MARKDOWN, CALLS, "It is *sunny*.", "It is still sunny.", "Hello."))
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(running.url)
    page.wait_for_selector(".idea")
    page.wait_for_function("document.querySelector('#facts dd')")
    picture(page, "1-empty")
    say(page, "How does a river find its course?")
    page.wait_for_selector(".live .reasoning[open]")
    picture(page, "2-thinking")
    done(page)
    answer = page.locator(".msg.assistant").last
    assert not answer.locator(".reasoning").evaluate("d => d.open")
    assert answer.locator("ol > li").count() == 2
    assert answer.locator("pre code").inner_text().startswith("def thalweg(section):")
    assert answer.locator("img").count() == 0
    assert "<img src=x" in answer.inner_text()
    assert answer.locator("a").evaluate_all("all => all.map(a => a.href)") == ["https://example.org/"]
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s · first after", answer.locator("footer").inner_text())
    picture(page, "3-answer")
    page.click("#open-panel")
    page.fill("#tools", f"[{TOOLS % 'get_weather'}, {TOOLS % 'get_time'}]")
    page.fill("#temperature", "0.25")
    assert "get_weather, get_time" in page.inner_text("#tools-note")
    page.keyboard.press("Escape")
    say(page, "What is the weather?")
    page.wait_for_selector(".results")
    assert page.locator(".call summary code").all_inner_texts() == ["get_weather", "get_time"]
    picture(page, "4-tools")
    page.locator(".results textarea").first.fill('{"sky": "clear"}')
    page.click(".results button")
    done(page)
    assert page.locator(".msg.assistant em").last.inner_text() == "sunny"
    assert running.engine.params[-1].temperature == 0.25
    assert '{"sky": "clear"}' in running.engine.prompts[-1]["prompt"]
    page.locator(".msg.assistant").last.get_by_role("button", name="Answer again").click()
    page.get_by_text("It is still sunny.").wait_for()
    done(page)
    page.reload()
    page.get_by_text("It is still sunny.").wait_for()
    page.press("#ask", "ArrowUp")
    assert page.input_value("#ask") == "What is the weather?"
    page.keyboard.press("Enter")
    page.get_by_text("Hello.").wait_for()
    done(page)
    assert page.locator(".msg").count() == 4
    assert {url.split("/")[2] for url in asked} == {running.url.removeprefix("http://")}


def test_stop_keys_themes_and_narrow_screens(start: Any, page: Any) -> None:
    running = start(Slow("word " * 300, "Short."), api_key=["secret"])
    page.goto(running.url)
    page.get_by_text("API key needed").wait_for()
    say(page, "Tell me a long story")
    page.wait_for_selector(".msg.assistant .error")
    page.fill("#key", "secret")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Answer again").click()
    page.wait_for_selector(".live .prose")
    page.keyboard.press("Escape")
    done(page)
    assert "stopped" in page.inner_text(".msg.assistant footer")
    assert 0 < len(page.inner_text(".msg.assistant .prose")) < 1400
    assert running.engine.aborted
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", dark))) < 150
    page.click("#open-panel")
    picture(page, "5-dark-settings")
    page.click("#close-panel")
    page.set_viewport_size({"width": 390, "height": 780})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "6-narrow")
    page.click("#open-side")
    page.wait_for_selector("#side", state="visible")
    picture(page, "7-side")
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+n")
    page.wait_for_selector(".idea")
    with page.expect_download() as saved:
        page.evaluate("document.getElementById('export').click()")
    assert "Tell me a long story" in Path(saved.value.path()).read_text()
    page.on("dialog", lambda d: d.accept())
    page.evaluate("document.getElementById('clear').click()")
    assert page.evaluate("JSON.parse(localStorage['thalweg.chats'])") == []
