"""`layerswap answers` and the examples of a run: what models said, and nothing of it is obeyed."""

import io
import json
import re
import shutil

import pytest
from rich.console import Console

from ablations.engines.hf_model import HfModel
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import EngineOptions
from ablations.report.answers import print_answers, select_answers, write_page
from ablations.report.pages import _sha256
from ablations.report.run_tables import load_tables
from ablations.report.write import make_report, render_markdown, write_report
from ablations.requests.resolve import resolve
from ablations.runner.run import RunOptions, run_study
from ablations.runs.examples import read_examples
from ablations.runs.run import load_run
from ablations.scoring.evaluation import EvaluationRequest
from layerswap_method.errors import InputError, printable
from tests.cli.test_json import described, object_of
from tests.report.runs import edit_record
from tests.standins.command import layerswap, output_of
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import MEAN, write_rows, write_task
from tests.standins.word_models import write_model

RUN = "document.title='taken'"
HOSTILE = [
    f"<script>{RUN}</script>",
    f"<img/src=x/onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f"<a/href=javascript:{RUN}>x</a>",
    f"</pre></details><script>{RUN}</script>",
    f"<iframe/srcdoc='<script>parent.{RUN}</script>'>",
    "<link/rel=stylesheet/href=http://127.0.0.1:9/x.css>",
    "<meta/http-equiv=refresh/content=0;url=http://127.0.0.1:9/>",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b2J",
    "\u202egnisrever",
    "[bold]markup[/bold]",
    "[link=http://127.0.0.1:9/]x[/link]",
    "{{7*7}}",
    "{%raw%}",
    "`````",
    "&lt;b&gt;",
    "--><!--",
]
ITEMS = 12
FIRST_WORD = {"function": "regex", "regex_pattern": r"(\S+)"}
BLEU = {"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}
TASKS = {
    "speak": {
        "generation_kwargs": {"until": ["<eos>"], "do_sample": False, "max_gen_toks": 6},
        "filter_list": [{"name": "first", "filter": [FIRST_WORD, {"function": "take_first"}]}],
    },
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
        "generation_kwargs": None,
        "metric_list": [{"metric": "acc", **MEAN}],
    },
    "translate": {"metric_list": [BLEU]},
    "gated": {"metadata": {"version": 1.0, "publish": False}},
}


def write_experts(folder):
    rows = [
        {
            "prompt": " ".join(HOSTILE[(item * step) % len(HOSTILE)] for step in range(1, 40))
            + "\n--- item 99 ---\nright",
            "answer": HOSTILE[item % len(HOSTILE)],
            "choices": [HOSTILE[item % len(HOSTILE)], HOSTILE[(item + 5) % len(HOSTILE)]],
        }
        for item in range(1, ITEMS + 1)
    ]
    data = write_rows(folder / "tasks", rows)
    for name, task in TASKS.items():
        write_task(folder / "tasks", name, data, **task)
    names = {}
    for seed, name in enumerate(("base", "math", "swahili")):
        path = write_model(folder / name, seed, words=HOSTILE, num_hidden_layers=4)
        names[name] = str(path)
    setting = {"experts": names, "include_path": str(folder / "tasks")}
    return write_yaml(folder / "experts.yml", setting)


def run_small(folder, out, evaluate=None, **changes):
    evaluate = {"tasks": [*TASKS], "options": {"batch_size": 4}, **(evaluate or {})}
    document = study_document(vary={"bottom_layers": [0, 1]}, evaluate=evaluate, **changes)
    study = write_yaml(folder / "small.yml", document)
    places = {"out": folder / out, "answers": folder / "answers"}
    result = run_study(str(study), RunOptions(folder / "experts.yml", backend="hf", **places))
    assert not result.summary.failed
    return result.run.path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models that say hostile words to hostile prompts, and a run of a study of them."""
    folder = tmp_path_factory.mktemp("answers")
    write_experts(folder)
    run_small(folder, "run")
    return folder


@pytest.fixture
def own(folder, tmp_path):
    """Return a copy of it that may be changed."""
    return shutil.copytree(folder, tmp_path / "own")


def printed(answers, *, width=100, is_terminal=True):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width)
    print_answers(answers, console)
    return console.file.getvalue()


@pytest.mark.parametrize("task", TASKS)
def test_texts_are_those_that_a_model_gets_and_gives(folder, task):
    request = EvaluationRequest(tasks=(task,), include_path=folder / "tasks")
    lm = start_model(folder / "math", "hf", EngineOptions(batch_size=4))
    try:
        samples = run_tasks(lm, resolve(request), folder / "math", "hf").samples
    finally:
        lm.close()
    shown = select_answers(f"{folder}/run:task expert", task).items
    assert len(shown) == len(samples) == ITEMS
    for item, sample in zip(shown, samples, strict=True):
        (answer,) = item.answers
        assert item.item == sample.doc_id
        assert {*item.prompts} == {*sample.prompts}
        assert item.choices == sample.choices
        assert item.target == sample.target
        for response, expected in zip(answer.responses, sample.responses, strict=True):
            assert response == expected or response[0] == pytest.approx(expected[0])
        if task == "choose":
            assert len(item.choices) == 2
            assert answer.is_right == (answer.likeliest == 0) == (sample.values["acc"] == 1)
        elif task == "speak":
            assert answer.taken == {"first": sample.answers}
            assert answer.is_right == (sample.values["exact_match"] == 1)
            assert answer.is_cut == (sample.values["truncated"] == 1)
        elif task == "translate":
            assert answer.is_right is None


def test_a_selection_is_what_was_asked_for(folder):
    name = f"{folder}/run:task expert"
    whole = select_answers(name, "choose")
    wrong = select_answers(name, "choose", is_wrong=True)
    assert 0 < len(wrong.items) < len(whole.items) == ITEMS
    assert [item for item in whole.items if not item.answers[0].is_right] == [*wrong.items]
    assert wrong.selection.startswith(f"{len(wrong.items)} of {ITEMS} items")
    (one,) = select_answers(name, "choose", item=3).items
    assert one == whole.items[3]
    other = f"{folder}/run:base"
    for against in (other, "base"):
        both = select_answers(name, "choose", against=against, is_all=True)
        assert both.models == (name, other)
        alone = select_answers(other, "choose")
        for pair, first, second in zip(both.items, whole.items, alone.items, strict=True):
            assert pair.answers == (*first.answers, *second.answers)


def test_a_model_is_taken_by_its_weights(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(folder)
    base, expert = "runs/run:base", "runs/run:task expert"
    models = [str(folder / name) for name in ("base", "math")]
    both = select_answers(models[1], "choose", against=models[0])
    assert both.models == (expert, base)
    assert both == select_answers(expert, "choose", against="base")
    assert select_answers(models[1], "choose", against="base") == both
    with pytest.raises(InputError, match="no run in runs has a score"):
        select_answers(str(folder / "swahili"), "choose")


def test_two_models_are_shown_and_counted_where_they_differ(folder):
    name, other = f"{folder}/run:task expert", f"{folder}/run:base"
    pairs = [
        tuple(answer.is_right for answer in item.answers)
        for item in select_answers(name, "choose", against=other, is_all=True).items
    ]
    found = select_answers(name, "choose", against=other)
    assert 0 < len(found.items) < ITEMS
    assert len({answer.is_right for answer in found.items[0].answers}) == 2
    only = (pairs.count((True, False)), pairs.count((False, True)))
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    assert len(found.items) == found.tally.differ == sum(only)
    assert found.tally.only == only
    assert found.tally.right == (both + only[0], both + only[1])
    assert found.selection == (
        f"{sum(only)} of {ITEMS} items differ: {only[0]} right with {name} only, {only[1]} with "
        f"{other} only; {both} right with both, {neither} with neither"
    )
    wrong = select_answers(name, "choose", against=other, is_wrong=True)
    assert len(wrong.items) == only[1]
    assert wrong.selection.startswith(f"{only[1]} of {ITEMS} items: those that {name} has wrong; ")
    # An item of BLEU is neither right nor wrong: there it is the value that differs.
    translated = select_answers(name, "translate", against=other)
    assert translated.tally.right == translated.tally.only == (None, None)
    assert (
        translated.selection == f"{len(translated.items)} of {ITEMS} items differ in their values"
    )


def test_with_repeats_samples_are_counted(own):
    sampling = {"do_sample": True, "temperature": 1.0}
    run = run_small(own, "repeated", {"tasks": ["speak"], "repeats": 3, "gen_kwargs": sampling})
    name = f"{run}:task expert"
    found = select_answers(name, is_wrong=True)
    count = ITEMS * 3
    assert found.selection.startswith(f"{len(found.items)} of {count} samples: those that")
    assert found.tally[:2] == (ITEMS, count)
    assert select_answers(name).selection == f"{count} samples"
    both = select_answers(name, against="base")
    assert both.selection.startswith(f"{len(both.items)} of {count} samples differ: ")
    write_page(both, own / "page.html")
    assert "${items.length} samples`" in (own / "page.html").read_text()


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_a_frame(folder, task):
    """Those of `answers --json`, with means that are those of the models."""
    run = load_tables(folder / "run")
    for model in run.models:
        frame = run.answers(task, model)
        items = select_answers(f"{folder}/run:{model}", task).items
        assert len(frame) == len(items) == ITEMS
        for row, item in zip(frame.to_dict("records"), items, strict=True):
            (answer,) = item.answers
            assert row["prompt"] == item.prompts[0]
            assert (row["item"], row["target"]) == (item.item, item.target)
            if task == "choose":
                assert row["answer"] == item.choices[answer.likeliest]
                assert row["is_right"] == (str(answer.likeliest) == row["target"])
            else:
                assert row["answer"] == answer.responses[0]
                assert row["taken"] == next(iter(answer.taken.values()))[0]
        if task != "translate":
            means = run.means.set_index(["model", "task"])["value"]
            assert frame["is_right"].mean() == pytest.approx(means[model, task])
        else:
            assert frame["is_right"].isna().all()
    with pytest.raises(InputError, match=r"no cell or model 'suop'; valid are base"):
        run.answers(task, "suop")
    with pytest.raises(InputError, match=f"did you mean '{task}'"):
        run.answers(task[:-1], "base")


def test_json_has_what_is_shown_and_the_counts(folder):
    words = ("answers", f"{folder}/run:task expert", "--task", "choose")
    made = object_of(*words, "--against", "base")
    (item, *_) = made["items"]
    assert described("answers") == {"tally", "items", *made["tally"], *item, *item["answers"][0]}
    found = select_answers(words[1], "choose", against="base")
    assert [item["item"] for item in made["items"]] == [item.item for item in found.items]
    for item, expected in zip(made["items"], found.items, strict=True):
        assert item["prompts"] == list(expected.prompts)
        assert item["target"] == expected.target
        for answer, one in zip(item["answers"], expected.answers, strict=True):
            assert answer["is_right"] is one.is_right
            assert answer["responses"] == [list(response) for response in one.responses]
    assert made["tally"]["differ"] == len(made["items"]) > 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run"], "run has 4 cells; name one of them: run:base 'run:task expert'"),
        (["run:bose", "--task", "speak"], "has no cell or model 'bose'; did you mean 'base'?"),
        (["run:xyz", "--task", "speak"], "has no cell or model 'xyz'; valid are base, task expert"),
        (["run:base"], "has 4 tasks; name one with --task: speak, choose, translate, gated"),
        (["run:base", "--task", "chose"], "no task 'chose'; did you mean 'choose'? Valid are spe"),
        (["run:base", "--task", "speak", "--item", "12"], "speak has the items 0 to 11"),
        (["run:base", "--task", "translate", "--wrong"], "is scored by bleu, by which a single"),
        (["run:base", "--task", "speak", "--against", "base"], "is the same as"),
        (["run:base", "--task", "speak", "--against", "soop"], "no cell or model 'soop'"),
        (["nowhere:base", "--task", "speak"], "no such folder"),
    ],
)
def test_bad_input_is_one_sentence(folder, monkeypatch, words, why):
    monkeypatch.chdir(folder)
    result = layerswap("answers", *words)
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_page_is_written_over_a_page_only(folder, tmp_path):
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("x")
    words = ("answers", f"{folder}/run:base", "--task", "speak", "--html")
    result = layerswap(*words, thesis)
    assert result.exit_code == 2
    assert "exists and is no page" in result.output
    assert thesis.read_text() == "x"
    for _ in range(2):
        text = output_of(*words, tmp_path / "page.html")
        assert text == f"{tmp_path / 'page.html'}: {ITEMS} items\n"


def test_a_pipe_gets_plain_text_and_a_terminal_obeys_nothing(folder):
    text = output_of(
        "answers", f"{folder}/run:base", "--task", "speak", "--against", "task expert", "--all"
    )
    assert not re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert len(re.findall("^--- item ", text, re.MULTILINE)) == ITEMS
    assert text.count("    --- item 99 ---\n    right\n") == ITEMS
    assert "[bold]markup[/bold]" in text
    assert r"\x1b[31mred\x1b]0;title\x07" in text
    assert r"\u202egnisrever" in text
    assert "  taken by first: " in text
    answers = select_answers(f"{folder}/run:base", "speak", against="task expert", is_all=True)
    screen = printed(answers)
    assert "\x1b[" in screen  # its own colours
    assert {*re.findall("\x1b(?!\\[[0-9;]*m)", screen)} == set()
    for sign in "\x07\x9b\u202e":
        assert sign not in screen
    assert "\x1b[31m" not in screen
    plain = re.sub("\x1b\\[[0-9;]*m", "", screen)
    assert len(re.findall("^--- item ", plain, re.MULTILINE)) == ITEMS
    assert len(re.findall("^ +--- item 99 ---", plain, re.MULTILINE)) == ITEMS
    assert "http" not in "".join(re.findall("\x1b\\]8.*?\x1b", screen))


def test_two_models_stand_side_by_side_where_there_is_room(folder):
    answers = select_answers(f"{folder}/run:base", "speak", against="task expert", item=0)
    head = re.compile(r"run:base: .*run:task expert: ")
    wide, narrow, pipe = (
        re.sub("\x1b\\[[0-9;]*m", "", printed(answers, width=width, is_terminal=is_terminal))
        for width, is_terminal in ((400, True), (60, True), (400, False))
    )
    assert head.search(wide)
    assert not head.search(narrow)
    assert not head.search(pipe)
    assert max(map(len, wide.splitlines())) <= 400
    first, second = answers.items[0].answers
    assert pipe.index("run:base: ") < pipe.index("run:task expert: ")
    assert first.model != second.model


def test_long_prompts_are_shown_by_their_end_unless_one_item_is_asked_for(folder):
    answers = select_answers(f"{folder}/run:base", "speak")
    text = printed(answers, width=10_000, is_terminal=False)
    long = [item for item in answers.items if len(item.prompts[0]) > 1000]
    assert len(long) > ITEMS / 2
    assert text.count("characters before: --item N or --html FILE]") == len(long)
    whole = printed(select_answers(f"{folder}/run:base", "speak", item=2), is_terminal=False)
    assert "characters before" not in whole
    assert len(whole) > len(answers.items[2].prompts[0]) > 1000


def refuse_all(browser, file, locator):
    """Open a page, unfold all of it, and return what it shows, having done nothing else."""
    page = browser.new_page(viewport={"width": 400, "height": 900})
    events = []
    for name in ("dialog", "pageerror", "console", "popup"):
        page.on(name, lambda event, name=name: events.append(f"{name} {event}"))
    page.on("request", lambda request: events.append(request.url))
    page.goto(file.as_uri())
    title = page.title()
    for link in page.locator("a[href]").all():
        assert link.get_attribute("href").startswith("#")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_timeout(300)
    assert page.title() == title != "taken"
    assert events == [file.as_uri()]
    assert page.locator(f"{locator} :is(script, img, svg, iframe, link, meta, a)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    text = page.locator(locator).first.inner_text()
    page.close()
    return text


def test_nothing_of_an_answer_runs_in_the_page(folder, browser, tmp_path):
    file = tmp_path / "page.html"
    name = f"{folder}/run:base"
    output_of(
        "answers", name, "--task", "speak", "--against", "task expert", "--all", "--html", file
    )
    text = refuse_all(browser, file, "main")
    for word in HOSTILE[:8]:
        assert word in text
    assert r"\x1b[31mred" in text
    policy = re.search('Policy" content="(.*?)"', file.read_text(encoding="utf-8"))[1]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    own = re.search("<script>(.*?)</script>\n</body>", file.read_text("utf-8"), re.DOTALL)[1]
    assert f"script-src '{_sha256(own)}';" in policy
    assert "unsafe" not in policy
    page = browser.new_page()
    page.goto(file.as_uri())
    assert page.locator(".item").first.evaluate("e => getComputedStyle(e).borderRadius") == "6px"
    assert page.locator(".answers").first.evaluate("e => e.children.length") == 2
    folds = page.locator("details")
    assert folds.count() >= ITEMS
    assert folds.first.get_attribute("open") is None
    page.close()


@pytest.mark.slow
def test_a_page_is_searched_and_filtered(folder, browser, tmp_path):
    file, name = tmp_path / "page.html", f"{folder}/run:task expert"
    output_of("answers", name, "--task", "choose", "--html", file)
    items = select_answers(name, "choose").items
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(file.as_uri())
    shown = page.locator(".item:visible")
    assert shown.count() == ITEMS
    page.select_option(".find select", "wrong-0")
    wrong = [item for item in items if item.answers[0].is_right is False]
    assert 0 < shown.count() == len(wrong) < ITEMS
    assert page.locator(".find output").inner_text() == f"{len(wrong)} of {ITEMS} items"
    for number, item in enumerate(wrong):
        assert shown.nth(number).locator("b").inner_text() == f"Item {item.item}"
    page.select_option(".find select", "")
    page.fill(".find input", "ITEM 3")  # upper and lower case are one; texts are found folded
    assert shown.locator("b").all_inner_texts() == ["Item 3"]
    page.fill(".find input", "")
    page.click(".find button")
    assert page.locator("details.item[open]").count() == ITEMS
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    output_of("answers", name, "--task", "choose", "--against", "base", "--html", file)
    page.goto(file.as_uri())
    names = [f"1: {name}", f"2: {folder}/run:base"]
    assert page.locator(".models span").all_inner_texts() == names
    texts = page.locator(".item").first.locator("summary span").all_inner_texts()
    assert [text[:3] for text in texts] == ["1: ", "2: "]
    assert "task expert" not in page.locator(".item summary").first.inner_text()
    spans = page.locator(".item").first.locator("summary span")
    assert len({span.bounding_box()["x"] for span in spans.all()}) == 1 < spans.count()
    page.close()


def test_a_report_shows_examples_and_obeys_none(folder, browser, tmp_path):
    run = load_run(folder / "run")
    report = make_report(run, draw=False)
    assert [task.task for task in report.examples] == ["speak", "choose", "translate"]
    titles = {title for task in report.examples for title, _ in task.kinds}
    assert {"Some models right, others wrong", "Wrong", "Right"} <= titles
    (translated,) = (task for task in report.examples if task.task == "translate")
    said = next(items for title, items in translated.kinds if title == "Some answers")
    assert {answer.is_right for item in said for answer in item.answers} == {None}
    assert {answer.is_cut or answer.is_empty for item in said for answer in item.answers} == {False}
    write_report(report, ["html"], tmp_path)
    text = refuse_all(browser, tmp_path / "report.html", "#examples")
    assert HOSTILE[0] in text
    markdown = render_markdown(report)
    part = markdown.partition("\n## What the models answered\n")[2].partition("\n## Notes\n")[0]
    assert part.count("<details>") == part.count("\n</details>\n") == 3
    fence, outside = "", []
    for line in part.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif found := re.match("(```+)text$", line):
            fence = found[1]
        else:
            outside.append(line)
    assert fence == ""
    assert not [line for line in outside if "taken" in line or "script" in line]
    assert HOSTILE[0] in part


def _shown(text):
    """Return a text as an example has it: without what a terminal or a page would obey."""
    return printable(text) if isinstance(text, str) else text


def test_examples_are_chosen_for_every_model_and_read_back(folder):
    run = load_run(folder / "run")
    lines = (run.path / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0]) == {"seed": 0, "examples": 2}
    examples = read_examples(run.path)
    assert len(examples) == len(lines) - 1 > 6
    models = {model.label for model in run.models}
    for task in ("speak", "choose"):
        items = [item for item in examples if item.task == task]
        for kind, is_of in (("right", True), ("wrong", False)):
            for model in models:
                name = f"{run.path}:{model}"
                whole = {i.item: i for i in select_answers(name, task).items}
                chosen = [
                    (item.item, answer)
                    for item in items
                    for answer in item.answers
                    if answer.model == model and kind in answer.kinds
                ]
                count = sum(item.answers[0].is_right is is_of for item in whole.values())
                assert len(chosen) == min(2, count)
                for number, answer in chosen:
                    assert answer.is_right is is_of
                    full = whole[number].answers[0]
                    assert answer.responses == tuple(map(_shown, full.responses))
                    for filter_, texts in full.taken.items():
                        assert answer.taken[filter_] == tuple(map(_shown, texts))
        for item in items:
            verdicts = {a.is_right for a in item.answers if "differ" in a.kinds}
            assert verdicts in (set(), {True, False})
    assert any("differ" in a.kinds for item in examples for a in item.answers)
    assert any("cut" in a.kinds for item in examples for a in item.answers)
    assert "gated" not in {item.task for item in examples}  # and the answers command shows it
    assert len(select_answers(f"{run.path}:base", "gated").items) == ITEMS


def test_a_study_may_have_none_or_more(own):
    before = (own / "run/examples.jsonl").read_bytes()
    shutil.rmtree(own / "run/report", ignore_errors=True)
    run_small(own, "run", report={"examples": 0})
    assert not (own / "run/examples.jsonl").exists()
    assert make_report(load_run(own / "run"), draw=False).examples == ()
    run_small(own, "run", report={"examples": 5})
    assert len((own / "run/examples.jsonl").read_bytes()) > len(before)
    run_small(own, "run")
    assert (own / "run/examples.jsonl").read_bytes() == before


def test_texts_that_are_gone_are_one_sentence_and_come_back(own, monkeypatch):
    run = load_run(own / "run")
    name = f"{run.path}:base"
    whole = select_answers(name, "speak")
    (record,) = (task for task in run.cells[0].task_records if task.task == "speak")
    monkeypatch.setattr(HfModel, "__init__", None)  # no engine starts

    # Scored before records had keys: what is stored is scored anew.
    edit_record(record.path, lambda text: re.sub('"keys":\\[[^]]*\\],', "", text))
    (run.path / "examples.jsonl").unlink()
    message = r"without a folder of answers.*remove .* run the same command"
    with pytest.raises(InputError, match=message):
        select_answers(name, "speak")
    record.path.unlink()
    run_small(own, "run")
    assert select_answers(name, "speak") == whole

    # The folder of answers is gone: what the run folder has is shown.
    shutil.rmtree(own / "answers")
    some = select_answers(name, "speak")
    assert 0 < len(some.items) < len(whole.items)
    assert {item.item for item in some.items} <= {item.item for item in whole.items}
    assert "no longer in" in some.notes[0]
    result = layerswap("answers", name, "--task", "gated")
    assert result.exit_code == 2
    assert "the texts of gated are no longer in" in " ".join(result.output.split())


def test_a_copy_for_readers_has_its_examples(own):
    for kept in ("records", "failures"):
        shutil.rmtree(own / "run" / kept, ignore_errors=True)
    name = f"{own}/run:base"
    answers = select_answers(name, "speak")
    assert 0 < len(answers.items) < ITEMS
    assert "copy for readers" in answers.notes[0]
    assert make_report(load_run(own / "run"), draw=False).examples
    with pytest.raises(InputError, match="copy for readers, and its examples"):
        select_answers(name, "gated")
    file = own / "run/examples.jsonl"
    line = file.read_text(encoding="utf-8").splitlines()[1]
    mixed = line.replace('"responses":["', '"responses":[[-1.0,true],"', 1)
    assert mixed != line
    for damaged in ("{", mixed, line.replace('"item":', '"itme":')):
        file.write_text(f"{{}}\n{damaged}\n", encoding="utf-8")
        for words in (("answers", name, "--task", "speak"), ("report", own / "run")):
            result = layerswap(*words)
            assert result.exit_code == 2
            assert "examples.jsonl:2 is damaged" in " ".join(result.output.split())
