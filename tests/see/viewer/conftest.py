"""A real browser for the tests of the viewer: the chromium of the system, driven by playwright."""

import os
import shutil

import pytest

from wayfare.see.viewer import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZE = {"width": 1280, "height": 800}


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests; each gets a window of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    # Chromium's own sandbox does not work for root, and the pages are ours.
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


class Viewer:
    """A page in the browser with all it complained about, and short ways to ask it things."""

    def __init__(self, browser, path, **context):
        self.window = browser.new_context(viewport=SIZE, **context)
        self.page = self.window.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __getattr__(self, name):
        return getattr(self.page, name)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def text(self, selector):
        """What is to be read in an element; SVG has no innerText."""
        return self.page.locator(selector).first.evaluate("(element) => element.innerText ?? element.textContent")

    def until(self, expression):
        """Wait until an expression holds. The page's policy forbids what playwright would do for that."""
        for _ in range(200):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(25)
        pytest.fail(f"never came true: {expression}")

    def count(self, selector):
        return self.page.locator(selector).count()

    def elements(self):
        """How many elements the page is made of."""
        return self.page.evaluate("document.getElementsByTagName('*').length")

    def titles(self):
        """The names of the items that are drawn, as a set."""
        return set(self.page.locator("#graph .item .title, #graph .open-box .title").all_text_contents())


@pytest.fixture
def show(browser, tmp_path):
    """show(document) → the page in a window; in the end it has complained about nothing and asked no network."""
    opened = []

    def open_document(document, **context):
        path = tmp_path / f"run{len(opened)}.html"
        path.write_text(page(document), encoding="utf-8")
        opened.append(Viewer(browser, path, **context))
        return opened[-1]

    yield open_document
    for viewer in opened:
        viewer.window.close()
        assert viewer.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in viewer.requests)
