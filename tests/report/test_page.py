"""The page in a real browser: sorting, filtering, silence. The tables in real LaTeX."""

import re
import shutil
import subprocess

import pytest
from playwright.sync_api import sync_playwright

from ablations.report.write import make_report, write_report

COLUMN = 5  # of the comparisons: corrected p


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # As root, which CI is, its own sandbox does not start.
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def file(nine_pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_report(make_report(nine_pairs), ["html"], folder)
    return folder / "report.html"


@pytest.fixture
def page(browser, file):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri())
    yield page
    page.close()


def column(page, at, table="comparisons"):
    return page.locator(f"#{table} tbody td:nth-child({at + 1})").all_text_contents()


def test_a_click_on_a_head_sorts_whole_rows_and_another_turns_them(page):
    rows = set(zip(column(page, 0), column(page, 1), column(page, 2), strict=True))
    button = page.locator("#comparisons th button").nth(2)
    for order in ("descending", "ascending"):
        button.click()
        numbers = [float(text) for text in column(page, 2) if text]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert len(set(numbers)) > 10
        assert page.locator("#comparisons th").nth(2).get_attribute("aria-sort") == order
    assert rows == set(zip(column(page, 0), column(page, 1), column(page, 2), strict=True))
    page.locator("#comparisons th button").nth(COLUMN).click()
    texts = column(page, COLUMN)
    assert "" in texts
    assert set(texts[texts.index("") :]) == {""}  # what has none stays last
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.locator("#comparisons th").nth(COLUMN - 1).get_attribute("aria-sort") != "none"


def test_words_over_a_table_leave_the_rows_that_have_them(page):
    shown = "#comparisons tbody tr:visible"
    total = page.locator(shown).count()
    page.locator("#comparisons input").fill("soup telugu PRIMARY")
    texts = page.locator(shown).all_text_contents()
    assert 0 < len(texts) < total
    assert all("soup" in text and "Telugu" in text and "primary" in text for text in texts)
    page.locator("#comparisons input").fill("")
    assert page.locator(shown).count() == total


def test_the_page_says_nothing_and_loads_nothing(browser, file):
    page = browser.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.locator("#comparisons th button").first.click()
    assert messages == []
    assert requests == [file.as_uri()]
    # The page could not load anything if it tried, and the check sees it when it does.
    with page.expect_console_message() as refused:
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'x.png'}))")
    assert "Content Security Policy" in refused.value.text
    page.close()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_tables_and_figures_compile_and_are_as_wide_as_a_page(nine_pairs, tmp_path):
    write_report(make_report(nine_pairs), ["latex"], tmp_path)
    packages = re.search("% Needs (.*)[.]", (tmp_path / "tables.tex").read_text())[1]
    text = rf"\documentclass{{book}}{packages}\begin{{document}}\input{{tables}}\end{{document}}"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not re.findall(r"Overfull .*in alignment.*", done.stdout)
