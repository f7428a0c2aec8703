"""A real Chromium that opens the web view, and notes what a page must never do."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from helpers.view import RunningView

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
]
WAIT_MS = 60_000
"""A busy machine may take long; a page that never shows what is expected fails all the same."""

WIDE = (1280, 860)
NARROW = (400, 800)


@dataclass
class Watched:
    """A page of the view, with its errors and the requests that it sent elsewhere."""

    page: Page
    view: RunningView
    problems: list[str] = field(default_factory=list)

    def visit(self, path: str) -> Page:
        """Open a page of the view and wait until it shows something."""
        self.page.goto(f"{self.view.origin}{path}")
        self.wait()
        return self.page

    def wait(self) -> None:
        """Wait until the page has loaded what it shows."""
        self.page.wait_for_selector("main > :not(.loading)")
        expect(self.page.locator("main .loading")).to_have_count(0)

    def node_count(self) -> int:
        return int(self.page.evaluate("document.querySelectorAll('*').length"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed Chromium, headless."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, view: RunningView, size: tuple[int, int] = WIDE, theme: str = "light"
) -> Iterator[Watched]:
    """A page that has exchanged the token; errors and foreign requests fail the test."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    watched = Watched(page, view)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            watched.problems.append(f"console: {message.text}")

    def on_request(request: Request) -> None:
        if not request.url.startswith((view.origin, "data:")):
            watched.problems.append(f"request to {request.url}")

    def on_dialog(dialog: Dialog) -> None:
        watched.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", on_console)
    page.on("pageerror", lambda error: watched.problems.append(f"error: {error}"))
    page.on("request", on_request)
    page.on("dialog", on_dialog)
    try:
        page.goto(view.address)
        page.wait_for_selector("#pages a")
        assert "token" not in page.url
        yield watched
        assert watched.problems == []
    finally:
        context.close()
