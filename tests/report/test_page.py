"""The page in a real browser: sorting by mouse and keyboard, silence, and a look."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ablations.report.writer import build
from ablations.runner.records import Run
from ablations.study.files import STUDIES
from tests.report.runs import study_of, write_run
from tests.study.test_files import load_study

COLUMN = 3  # pocket_math_sw


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # As root, which CI is, its own sandbox does not start.
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def file(grid: Run, report_folder: Path) -> Path:
    build(grid, ["html"], report_folder / "browser", published=True)
    return report_folder / "browser" / "report.html"


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    found = browser.new_page()
    found.goto(file.as_uri())
    yield found
    found.close()


def _column(page: Page, column: int = COLUMN, table: str = "cells") -> list[str]:
    return page.locator(f"#{table} tbody td:nth-child({column + 1})").all_text_contents()


def _sort_states(page: Page) -> list[str | None]:
    return [each.get_attribute("aria-sort") for each in page.locator("#cells th").all()]


def _numbers(texts: list[str]) -> list[float]:
    return [float(text.split()[0]) for text in texts]


def test_a_click_on_a_header_sorts_and_another_turns_it(page: Page) -> None:
    before = _column(page)
    assert _numbers(before) != sorted(_numbers(before), reverse=True)
    button = page.locator("#cells th button").nth(COLUMN)
    button.click()
    assert _numbers(_column(page)) == sorted(_numbers(before), reverse=True)
    assert _sort_states(page)[COLUMN] == "descending"
    button.click()
    assert _numbers(_column(page)) == sorted(_numbers(before))
    assert [state for state in _sort_states(page) if state != "none"] == ["ascending"]
    # Whole rows move: each label is still beside its score.
    labels = dict(zip(_column(page, 0), _column(page), strict=True))
    page.reload()
    assert labels == dict(zip(_column(page, 0), _column(page), strict=True))


def test_the_keyboard_sorts_too(page: Page) -> None:
    page.locator("#cells .scroll").focus()
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.text_content() == "cell"
    page.keyboard.press("Enter")
    names = _column(page, 0)
    assert names == sorted(names, key=str.lower)
    assert _sort_states(page)[0] == "ascending"
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


def test_gaps_stay_last_whichever_way(page: Page) -> None:
    for _ in range(2):
        page.locator("#grid-pocket-math-sw th button").nth(2).click()
        rows = _column(page, 2, "grid-pocket-math-sw")
        assert len(rows) == 3
        assert rows[-1] == "–"


def test_the_page_says_nothing_and_asks_for_nothing(browser: Browser, file: Path) -> None:
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.locator("#cells th button").first.click()
    assert said == []
    assert asked == [file.as_uri()]
    # The page could not load anything if it tried, and the check sees it when it does.
    with page.expect_console_message() as refused:
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'x.png'}))")
    assert "Content Security Policy" in refused.value.text
    page.close()


def _luminance(page: Page, selector: str, name: str) -> float:
    style = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
    red, green, blue = map(float, re.findall(r"[\d.]+", style)[:3])

    def linear(value: float) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    paper = _luminance(page, "body", "backgroundColor")
    assert (paper > 0.5) is (scheme == "light")
    for selector in ("h1", "td", ".note", "td.gap"):
        ink = _luminance(page, selector, "color")
        # WCAG 2, level AA for small text.
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


_HIDDEN = "Array.from(document.querySelectorAll('.scroll'), e => e.scrollWidth - e.clientWidth)"
"""Pixels of every table that are out of sight."""


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_has_to_be_scrolled_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = page.evaluate(_HIDDEN)
    assert len(found) > 5
    assert max(found) <= 0


def test_tables_of_many_columns_fit(browser: Browser, tmp_path: Path) -> None:
    study = load_study(STUDIES / "real_model.yml")
    run = write_run(tmp_path / "run", study, lambda _, __: 0.0, items=20)
    build(run, ["html"], tmp_path / "report")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((tmp_path / "report" / "report.html").as_uri())
    assert page.locator("table:has(th:nth-child(17))").count() > 0
    assert max(page.evaluate(_HIDDEN)) <= 0
    page.close()


def test_a_path_in_a_warning_is_broken_on_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    study = study_of(evaluate={"tasks": ["word_problems_about_money_in_two_steps_sw"]})
    run = write_run(tmp_path / "run", study, lambda _, __: -99.0, items=20)
    build(run, ["html"], tmp_path / "report")
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto((tmp_path / "report" / "report.html").as_uri())
    assert "samples.jsonl" in (page.locator("#problems li").first.text_content() or "")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.close()


def test_on_a_narrow_window_every_number_has_its_head_beside_it(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    cell = page.locator("#scores tbody td").nth(1)
    assert cell.get_attribute("data-label") == "math, Swahili"
    shown = cell.evaluate("e => getComputedStyle(e, '::before').content")
    assert "math, Swahili" in shown


def test_on_a_narrow_window_no_head_stands_beside_nothing(page: Page) -> None:
    cells = page.locator("#cells tbody td")
    empty = [each for each in cells.all() if each.text_content() == ""]
    assert empty
    for width, is_shown in ((1280, True), (400, False)):
        page.set_viewport_size({"width": width, "height": 900})
        assert {each.is_visible() for each in empty} == {is_shown}
    assert cells.nth(1).is_visible()


def test_the_first_screen_answers(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    tops = [
        page.locator(place).first.bounding_box()
        for place in ("h1", "#bottom-line", "#map-b-u svg", "#scores", "nav", "#about")
    ]
    heights = [box["y"] for box in tops if box is not None]
    assert len(heights) == 6
    assert heights == sorted(heights)
    assert heights[3] < 900
    for link in page.locator("nav a").all():
        target = link.get_attribute("href")
        assert target is not None
        assert page.locator(f"section{target}").count() == 1
