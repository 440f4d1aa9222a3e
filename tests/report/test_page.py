"""The page in a real browser: sorting by mouse and keyboard, silence, and a look."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations.report.writer import build
from ablations.runner.records import Run
from tests.report.browser import Browser, find_chromium

TABLE = "document.querySelector('#cells table')"
COLUMN = 3  # pocket_math_sw


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(grid: Run, report_folder: Path) -> Path:
    build(grid, ["html"], report_folder / "browser", published=True)
    return report_folder / "browser" / "report.html"


def _column(browser: Browser, column: int = COLUMN) -> list[str]:
    cells = f"Array.from({TABLE}.tBodies[0].rows, r => r.cells[{column}].textContent)"
    return list(browser.evaluate(cells))


def _sort_states(browser: Browser) -> list[str]:
    heads = f"Array.from({TABLE}.tHead.rows[0].cells, c => c.getAttribute('aria-sort'))"
    return list(browser.evaluate(heads))


def _numbers(texts: list[str]) -> list[float]:
    return [float(text.split()[0]) for text in texts]


def test_a_click_on_a_header_sorts_and_another_turns_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = _column(browser)
    assert _numbers(before) != sorted(_numbers(before), reverse=True)
    button = f"{TABLE}.tHead.rows[0].cells[{COLUMN}].querySelector('button')"
    browser.click(button)
    assert _numbers(_column(browser)) == sorted(_numbers(before), reverse=True)
    assert _sort_states(browser)[COLUMN] == "descending"
    browser.click(button)
    assert _numbers(_column(browser)) == sorted(_numbers(before))
    assert _sort_states(browser)[COLUMN] == "ascending"
    assert [state for state in _sort_states(browser) if state != "none"] == ["ascending"]
    # Whole rows move: each label is still beside its score.
    labels = dict(zip(_column(browser, 0), _column(browser), strict=True))
    browser.open(page)
    assert labels == dict(zip(_column(browser, 0), _column(browser), strict=True))


def test_the_keyboard_sorts_too(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate(f"{TABLE}.closest('.scroll').focus()")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.textContent") == "cell"
    browser.press("Enter", 13, "\r")
    names = _column(browser, 0)
    assert names == sorted(names, key=str.lower)
    assert _sort_states(browser)[0] == "ascending"
    focus = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.evaluate(focus) == "solid"


def test_gaps_stay_last_whichever_way(browser: Browser, page: Path) -> None:
    browser.open(page)
    table = "document.querySelector('#grid-pocket-math-sw table')"
    for _ in range(2):
        browser.click(f"{table}.tHead.rows[0].cells[2].querySelector('button')")
        rows = browser.evaluate(f"Array.from({table}.tBodies[0].rows, r => r.cells[2].textContent)")
        assert len(rows) == 3
        assert rows[-1] == "–"


def test_the_page_says_nothing_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button')")
    assert browser.complaints() == []
    assert [url.partition(":")[0] for url in browser.requests()] == ["file"]
    # The page could not load anything if it tried, and the check sees it when it does.
    browser.evaluate("document.body.append(Object.assign(new Image(), {src: 'x.png'})); 0")
    waiting = "new Promise(resolve => setTimeout(resolve, 300))"
    browser.send("Runtime.evaluate", expression=waiting, awaitPromise=True)
    assert any("Content Security Policy" in text for text in browser.complaints())


def _luminance(browser: Browser, selector: str, name: str) -> float:
    style = f"getComputedStyle(document.querySelector('{selector}')).{name}"
    red, green, blue = map(float, re.findall(r"[\d.]+", browser.evaluate(style))[:3])

    def linear(value: float) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(
    browser: Browser, page: Path, tmp_path: Path, scheme: str
) -> None:
    browser.open(page)
    browser.screenshot(tmp_path / "page.png", scheme=scheme)
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    paper = _luminance(browser, "body", "backgroundColor")
    assert (paper > 0.5) is (scheme == "light")
    for selector in ("h1", "td", ".note", "td.gap"):
        ink = _luminance(browser, selector, "color")
        # WCAG 2, level AA for small text.
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def test_a_narrow_window_scrolls_tables_not_the_page(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    browser.open(page)
    browser.screenshot(tmp_path / "narrow.png", width=400)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    wide = "Array.from(document.querySelectorAll('.scroll'), e => e.scrollWidth > e.clientWidth)"
    assert any(browser.evaluate(wide))
