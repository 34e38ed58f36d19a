"""The page in a real Chromium: it renders, says nothing on the console, asks for nothing, and can be used with the keyboard alone."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from gates.packet.packet import Packet
from gates.report.report import render_report
from gates.report.source import ARMS, CellTables
from tests.render.verdict_documents import invalid, regression, release
from tests.report.test_page import HOSTILE, hostile, pair_of, windows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FORMS = {
    "light": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 380, "height": 800}, "color_scheme": "light"},
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Return a page with every kind of chart."""
    parts = {"time_s": 5.0, "compute_s": 2.0, "memory_stall_s": 1.0, "launch_s": 1.0, "sync_s": 1.0}
    names = ("ops", "backend", "tile", "split", "weights_format", "activations_format", "kv_format", "bottleneck_class")
    row = {**dict.fromkeys(names, ""), "step": "decode", "bytes": "1e7", "time_s": "1e-5"}
    sheet = [{**row, "kernel": f"gemm{place}", "flops": str(1e9 * place)} for place in (1, 2)]
    cell = CellTables(
        requests=pair_of(2000).requests,
        paired=True,
        windows={arm: windows(50) for arm in ARMS},
        layers={arm: [("mlp", parts), ("attention", parts)] for arm in ARMS},
        sheets={"baseline": sheet, "candidate": [{**one, "time_s": "2e-5"} for one in sheet]},
        hardware={"memory_bytes_per_s": 2e12, "matrix_flops_per_s": {"bf16": 3e14}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gates.report.report.cell_tables", lambda *_: (cell,))
        return written(tmp_path_factory.mktemp("page"), regression())


def written(folder, document):
    path = folder / "report.html"
    path.write_bytes(render_report(document, Packet(where="", names=frozenset(), read=lambda _: b"")))
    return path


def opened(browser, path, **form):
    """Return a page, and what it said and asked for."""
    page, heard = browser.new_page(**form), []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: (heard.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, heard


@pytest.mark.parametrize("form", FORMS)
def test_every_section_is_drawn_and_nothing_is_said_or_asked_for(browser, full, form, tmp_path):
    page, heard = opened(browser, full, **FORMS[form])
    sections = page.locator("section")
    assert sections.count() == 13
    for place in range(sections.count()):
        shot = tmp_path / f"{place}.png"
        sections.nth(place).screenshot(path=shot)
        assert shot.stat().st_size > 1000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for chart in page.locator("figure svg").all():
        box = chart.bounding_box()
        assert box["width"] > 250
        assert box["height"] > 50
    assert heard == []
    page.close()


def test_text_has_contrast_in_both_schemes_and_charts_wear_the_pages_colours(browser, full):
    seen = {}
    for form in ("light", "dark"):
        page, _ = opened(browser, full, **FORMS[form])
        seen[form] = page.evaluate(
            """() => {
              const channel = value => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
              const light = colour => {
                const [r, g, b] = colour.match(/[0-9.]+/g).map(Number);
                return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
              };
              const paper = light(getComputedStyle(document.body).backgroundColor);
              const ratio = own => (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05);
              const style = node => getComputedStyle(node);
              const texts = [...document.querySelectorAll("p, li, th, td, a, summary")].map(node => ratio(light(style(node).color)));
              const labels = [...document.querySelectorAll("svg text")].map(node => ratio(light(style(node).fill)));
              return { texts: Math.min(...texts), labels: Math.min(...labels), paper };
            }"""
        )
        page.close()
    assert seen["light"]["paper"] > 0.9
    assert seen["dark"]["paper"] < 0.1
    for found in seen.values():
        assert found["texts"] >= 4.5  # WCAG 2.2, 1.4.3
        assert found["labels"] >= 4.5


def test_a_chart_is_read_with_the_keyboard_and_with_the_pointer(browser, full):
    page, _ = opened(browser, full, **FORMS["light"])
    chart, reading = page.locator("#forest svg"), page.locator("#forest .reading")
    marks = page.locator("#forest .hit title").all_text_contents()
    chart.focus()
    for key, place in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("Home", 0)):
        page.keyboard.press(key)
        assert reading.text_content() == marks[place]
    page.keyboard.press("Escape")
    assert reading.text_content() == ""
    page.locator("#forest .hit").nth(3).hover()
    assert reading.text_content() == marks[3]
    page.close()


def test_marks_lie_on_what_they_read_out(browser, full):
    page, _ = opened(browser, full, **FORMS["light"])
    distance = page.evaluate(
        """() => {
          const figure = document.querySelector("#tail-e2e-0");
          const hits = [...figure.querySelectorAll(".hit")].map(one => [+one.getAttribute("cx"), +one.getAttribute("cy")]);
          const drawn = [...figure.querySelectorAll("g[clip-path] use")].map(one => [+one.getAttribute("x"), +one.getAttribute("y")]);
          return Math.max(...hits.map(([x, y]) => Math.min(...drawn.map(([u, v]) => Math.hypot(u - x, v - y)))));
        }"""
    )
    assert distance < 0.2
    page.close()


def test_print_shows_what_is_folded(browser, full):
    page, _ = opened(browser, full, **FORMS["light"])
    assert page.pdf().startswith(b"%PDF")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every(part => part.open)")
    page.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing_in_a_browser(browser, tmp_path, name):
    page, heard = opened(browser, written(tmp_path, hostile(regression(), name)), **FORMS["narrow"])
    assert heard == []
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


@pytest.mark.parametrize("make", [release, invalid])
def test_other_verdicts_render_without_a_word(browser, tmp_path, make):
    page, heard = opened(browser, written(tmp_path, make()), **FORMS["narrow"])
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert np.isfinite(page.evaluate("document.body.getBoundingClientRect().height"))
    page.close()
