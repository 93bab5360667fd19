"""A report in a real browser: no errors, nothing asked of the network, the viewer inside it alive, light and dark."""

import shutil

import pytest

import wayfare as wf
from tests.see.report.parts import a_history, a_task

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    model, batch, loss = a_task()
    path = tmp_path_factory.mktemp("browser") / "report.html"
    wf.report(model, batch=batch, loss=loss, history=a_history(12), names=["<b>north</b>", "east", "south"], path=path)
    return path


@pytest.fixture(params=["light", "dark"])
def page(browser, path, request):
    """The page, and what it complained about or asked for."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    opened.complaints, opened.scheme = [], request.param
    opened.on("console", lambda message: opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda asked: asked.url.startswith("http") and opened.complaints.append(asked.url))
    opened.goto(path.as_uri())
    yield opened
    assert opened.complaints == []
    opened.close()


def test_it_fits_the_width_and_draws_its_curves(page):
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
    boxes = page.evaluate("[...document.querySelectorAll('svg .curve')].map(e => e.getBoundingClientRect().height)")
    assert len(boxes) >= 4 and max(boxes) > 40
    assert page.locator("table.matrix td.right").first.evaluate("e => getComputedStyle(e).backgroundColor") != ""


def test_light_and_dark_and_the_switch(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    dark = sum(int(part) for part in before.removeprefix("rgb(").removesuffix(")").split(",")) < 200
    assert dark == (page.scheme == "dark")
    page.locator("#graph").scroll_into_view_if_needed()
    inside = page.frame_locator(".viewer iframe")
    inside.get_by_role("tab", name="Source").wait_for()
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(ground) != before
    # The viewer is told, which cannot be seen into.
    playwright.expect(inside.locator("html")).to_have_attribute("data-theme", "light" if dark else "dark")


def test_the_viewer_inside_is_alive(page):
    page.locator("#graph").scroll_into_view_if_needed()
    inside = page.frame_locator(".viewer iframe")
    inside.get_by_role("tab", name="Source").click()
    assert inside.get_by_role("tab", name="Source").get_attribute("aria-selected") == "true"


def test_the_list_of_sections_follows(page):
    page.get_by_role("link", name="Metrics").click()
    playwright.expect(page.locator("nav a.here")).to_have_text("Metrics")
    assert page.locator("#metrics h2").is_visible()
    assert page.locator("b:has-text('north')").count() == 0
