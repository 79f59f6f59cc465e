"""Draws the pictures of README.md: the server's page with answers of the bundled model, and a memory plan as text.

Needs `pip install playwright` and a Chromium in PATH. The plan's picture needs neither.

    python ci/pictures.py [plan] [page]
"""

from __future__ import annotations

import html
import itertools
import shutil
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
PLAN = ("plan", "docker/shapes/qwen3-8b", "--device", "cpu", "--quantization", "int4", "--max-model-len", "8192")
QUESTIONS = ("What can you do?", "Sort these words: river, bridge, tower")
PORT = 8763
COLOURS = ("#8fd3ff", "#e6e6e6")
"""Of the command and of its output."""
COLUMNS = 96
ADVANCE, LEADING, MARGIN = 7.8, 19, 16
"""Of a monospaced font at 13 pixels: width of a character, height of a line; and the space around the text. In pixels."""


def draw_plan() -> Path:
    """The output of `thalweg plan` as SVG, below the command."""
    done = subprocess.run([sys.executable, "-m", "thalweg", *PLAN], cwd=ROOT, text=True, capture_output=True)
    wrapped = (textwrap.wrap(line, COLUMNS, subsequent_indent=" " * 11) for line in done.stdout.splitlines())
    lines = [f"$ thalweg {' '.join(PLAN)}", *itertools.chain(*wrapped)]
    width = round(max(map(len, lines)) * ADVANCE + 2 * MARGIN)
    height = len(lines) * LEADING + 2 * MARGIN
    rows = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LEADING * i + 13}" fill="{COLOURS[i > 0]}">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    file = FOLDER / "plan.svg"
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f'<rect width="100%" height="100%" rx="6" fill="#16202a"/>\n'
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">\n'
        f"{rows}\n</g>\n</svg>\n"
    )
    return file


def draw_page() -> Path:
    """A screenshot of the page after the questions that it suggests."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    server = subprocess.Popen([sys.executable, "-m", "thalweg", "serve", "--host", "127.0.0.1", "--port", str(PORT)], cwd=ROOT)
    file = FOLDER / "page.png"
    try:
        wait_until_healthy(f"http://127.0.0.1:{PORT}/health")
        with sync_playwright() as play:
            chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--headless=shell", "--disable-gpu"])
            page = chromium.new_page(viewport={"width": 1100, "height": 640}, reduced_motion="reduce")
            page.goto(f"http://127.0.0.1:{PORT}/")
            for question in QUESTIONS:
                page.fill("#ask", question)
                page.keyboard.press("Enter")
                page.wait_for_selector("html:not(.busy) .msg.assistant:last-of-type footer")
            page.screenshot(path=file)
            chromium.close()
    finally:
        server.terminate()
        server.wait(30)
    return file


def wait_until_healthy(url: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("plan", "page"):
        print({"plan": draw_plan, "page": draw_page}[name]())
