"""The page in a real browser: sorting, filtering, folding, sizes. The tables in real LaTeX."""

import io
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image, ImageStat

from ablations.report.write import make_report, write_report
from ablations.runs.run import load_run
from tests.report.runs import level, study_of, write_run

RESULTS = Path(__file__).parents[2] / "ablations" / "results"
EXPLORATORY = "#comparisons details:last-of-type"
SCORE = 3  # column of the cells
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
UNFOLD = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"


@pytest.fixture(scope="module")
def file(nine_pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_report(make_report(nine_pairs), ["html"], folder)
    return folder / "report.html"


@pytest.fixture
def page(browser, file):
    page = browser.new_page(viewport=DESK)
    page.goto(file.as_uri())
    page.evaluate(UNFOLD)
    yield page
    page.close()


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory):
    """Nine settings of two parameters against two baselines: 18 comparisons by default."""
    study = study_of(
        vary={"bottom_layers": [0, 1, 2], "top_layers": [0, 1, 2]},
        baseline=["soup", "task_expert"],
        evaluate={"tasks": ["pocket_math_sw", "pocket_math_en", "pocket_translate_en_sw"]},
    )
    return write_run(tmp_path_factory.mktemp("grid") / "run", study, level, items=60)


@pytest.fixture(scope="module")
def curve_run(tmp_path_factory):
    study = study_of(
        vary={"keep_fraction": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]},
        recipe={
            "merge_method": "delta_revert",
            "models": [{"model": "task"}],
            "base_model": "base",
        },
        baseline=["base", "task_expert"],
        report={"primary": {"against": ["first_setting"]}},
    )
    return write_run(tmp_path_factory.mktemp("curve") / "run", study, level, items=60)


@pytest.fixture(scope="module", params=["nine_pairs", "grid_run", "curve_run"])
def any_file(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write_report(make_report(request.getfixturevalue(request.param)), ["html"], folder)
    return folder / "report.html"


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def screen(request, browser, any_file):
    page = browser.new_page(viewport=request.param)
    page.goto(any_file.as_uri())
    yield page
    page.close()


def column(page, at, table=EXPLORATORY):
    return page.locator(f"{table} tbody td:nth-child({at + 1})").all_text_contents()


def test_a_click_on_a_head_sorts_whole_rows_and_another_turns_them(page):
    rows = set(zip(column(page, 0), column(page, 1), column(page, 2), strict=True))
    button = page.locator(f"{EXPLORATORY} th button").nth(2)
    for order in ("descending", "ascending"):
        button.click()
        numbers = [float(text) for text in column(page, 2) if text]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert len(set(numbers)) > 10
        assert page.locator(f"{EXPLORATORY} th").nth(2).get_attribute("aria-sort") == order
    assert rows == set(zip(column(page, 0), column(page, 1), column(page, 2), strict=True))
    page.locator("#cells th button").nth(SCORE).click()
    texts = column(page, SCORE, "#cells")
    assert "–" in texts
    assert set(texts[texts.index("–") :]) == {"–"}  # what has none stays last
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.locator("#cells th").nth(SCORE - 1).get_attribute("aria-sort") != "none"


@pytest.mark.slow
def test_words_over_a_table_leave_the_rows_that_have_them(page):
    shown = f"{EXPLORATORY} tbody tr:visible"
    total = page.locator(shown).count()
    page.locator(f"{EXPLORATORY} input").fill("soup telugu EXPLORATORY")
    texts = page.locator(shown).all_text_contents()
    assert 0 < len(texts) < total
    assert all("soup" in text and "Telugu" in text and "exploratory" in text for text in texts)
    page.locator(f"{EXPLORATORY} input").fill("")
    assert page.locator(shown).count() == total


def test_primary_comparisons_are_seen_and_details_fold(browser, file):
    page = browser.new_page(viewport=DESK)
    page.goto(file.as_uri())
    rows = page.locator("#comparisons tbody tr")
    seen = page.locator("#comparisons tbody tr:visible")
    assert 0 < seen.count() < rows.count()
    assert all("primary" in text for text in seen.all_text_contents())
    assert page.locator("#cells tbody tr:visible").count() == 0
    page.locator(f"{EXPLORATORY} summary").click()
    assert seen.count() == rows.count()
    page.close()


@pytest.mark.slow
def test_the_page_has_one_answer_and_folds_the_comparisons_of_a_grid(browser, grid_run, tmp_path):
    report = make_report(grid_run)
    write_report(report, ["html"], tmp_path)
    page = browser.new_page(viewport=DESK, color_scheme="dark")
    page.goto((tmp_path / "report.html").as_uri())
    heads = page.locator("h2").all_inner_texts()
    assert [head for head in heads if "nswer" in head] == ["Answer"]
    rows = page.locator("#answers tbody tr")
    assert rows.count() == 18
    assert page.locator("#answers tbody tr:visible").count() == 0
    page.locator("#answers summary").click()
    assert page.locator("#answers tbody tr:visible").count() == 18
    for scheme, is_dark in (("dark", True), ("light", False)):
        page.emulate_media(color_scheme=scheme)
        picture = Image.open(io.BytesIO(page.locator("figure svg").first.screenshot()))
        red, *_ = ImageStat.Stat(picture.convert("RGB")).median
        assert (red < 60) == is_dark
        paper = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert f"rgb{picture.convert('RGB').getpixel((1, 1))}" == paper
    page.close()


@pytest.mark.slow
def test_a_phone_has_the_answer_first_and_is_not_scrolled_for_long(browser, any_file):
    page = browser.new_page(viewport=PHONE)
    page.goto(any_file.as_uri())
    height = "document.documentElement.scrollHeight"
    folded = page.evaluate(height)
    assert page.locator("main section").nth(0).get_attribute("id") in ("answer", "problems")
    for family in ("primary", "exploratory"):
        assert page.locator("#comparisons summary", has_text=family).count() == 1
    assert page.locator(f"{EXPLORATORY} tbody tr:visible").count() == 0
    page.evaluate(UNFOLD)
    assert folded < 7000
    assert page.evaluate(height) > 1.5 * folded
    page.close()


WIDER = """() => [...document.querySelectorAll("main *, header *")]
  .filter((part) => !part.closest("thead, figure"))
  .filter((part) => part.getBoundingClientRect().right > innerWidth + 1)
  .map((part) => part.outerHTML.slice(0, 99))"""


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(browser, any_file):
    page = browser.new_page(viewport=PHONE)
    page.goto(any_file.as_uri())
    page.evaluate(UNFOLD)
    assert page.evaluate(WIDER) == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    page.close()


# Glyphs are drawn on a grid of 100 units, so the scale of their group is the size of the font.
TEXTS = """() => [...document.querySelectorAll("figure svg")]
  .filter((svg) => svg.checkVisibility())
  .map((svg) => ({
    figure: svg.closest("section").id,
    box: svg.getBoundingClientRect().toJSON(),
    texts: [...svg.querySelectorAll("g[id*='-text_'] > g[transform]")].map((text) => {
      const scale = text.getScreenCTM();
      const notes = [...text.parentElement.childNodes].filter((node) => node.nodeType === 8);
      return {
        text: notes.map((node) => node.textContent).join(" "),
        size: 100 * Math.hypot(scale.a, scale.b),
        box: text.getBoundingClientRect().toJSON(),
      };
    }),
  }))"""


@pytest.mark.slow
def test_every_label_of_a_figure_is_legible_whole_and_apart_from_others(screen):
    screen.evaluate(UNFOLD)
    figures = screen.evaluate(TEXTS)
    assert len(figures) == len(screen.locator("figure").all())
    for figure in figures:
        outer, texts = figure["box"], figure["texts"]
        assert len(texts) > 5
        assert min((text["size"], text["text"]) for text in texts)[0] >= 9
        for text in texts:
            box = text["box"]
            assert outer["left"] - 1 <= box["left"] <= box["right"] <= outer["right"] + 1, text
            assert outer["top"] - 1 <= box["top"] <= box["bottom"] <= outer["bottom"] + 1, text
        for one, other in itertools.combinations(texts, 2):
            assert not overlap(one["box"], other["box"]), (one, other)


def overlap(one, other):
    across = min(one["right"], other["right"]) - max(one["left"], other["left"])
    down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
    return across > 0.5 and down > 0.5


@pytest.mark.slow
def test_figures_fill_a_phone_and_their_share_of_a_wide_column(browser, any_file):
    for viewport, least in ((DESK, 0.46), (PHONE, 0.97)):
        page = browser.new_page(viewport=viewport)
        page.goto(any_file.as_uri())
        page.evaluate(UNFOLD)
        column_px = page.locator("main").bounding_box()["width"]
        shown = page.locator("figure svg").all()
        assert len(shown) == page.locator("figure").count() > 0
        assert max(svg.bounding_box()["width"] for svg in shown) > least * column_px
        assert all(svg.get_attribute("aria-label").count(". ") >= 2 for svg in shown)
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_folded"), [("placement", True), ("layer_count", False)])
def test_comparisons_fit_a_phone_and_many_are_folded(browser, tmp_path, name, is_folded):
    """Of a shipped result; their labels stand above the bars, not beside them."""
    write_report(make_report(load_run(RESULTS / name)), ["html"], tmp_path)
    page = browser.new_page(viewport={**PHONE, "width": 390})
    page.goto((tmp_path / "report.html").as_uri())
    figure = page.locator("section:is(#planned, #default) figure")
    assert figure.is_visible() != is_folded
    page.evaluate(UNFOLD)
    assert figure.is_visible()
    assert figure.evaluate("figure => figure.scrollWidth <= figure.clientWidth")
    page.close()


def test_the_page_says_nothing_and_loads_nothing(browser, file):
    page = browser.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.locator("#comparisons th button").first.click()
    page.locator(f"{EXPLORATORY} summary").click()
    assert messages == []
    assert requests == [file.as_uri()]
    # The page could not load anything if it tried, and the check sees it when it does.
    with page.expect_console_message() as refused:
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'x.png'}))")
    assert "Content Security Policy" in refused.value.text
    page.close()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("name", ["nine_pairs", "grid_run"])
@pytest.mark.slow
def test_tables_and_figures_compile_and_are_as_wide_as_a_page(name, request, tmp_path):
    write_report(make_report(request.getfixturevalue(name)), ["latex"], tmp_path)
    packages = re.search("% Needs (.*)[.]", (tmp_path / "tables.tex").read_text())[1]
    text = rf"\documentclass{{book}}{packages}\begin{{document}}\input{{tables}}\end{{document}}"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not re.findall(r"Overfull .*in alignment.*", done.stdout)
