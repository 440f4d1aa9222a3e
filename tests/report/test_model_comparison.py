"""The text and the HTML of models that are compared."""

from pathlib import Path

from ablations.report.compare_models import compare_models
from ablations.runs.records import write_run_file
from ablations.statistics.as_text import points
from tests.report.runs import TASKS, level, study_of, widest, write_run, write_single


def text_of(compared):
    return " ".join(str(compared).split())


def test_a_pair_and_a_task_are_one_line_of_eighty_columns_and_nothing_is_written_twice(tmp_path):
    folders = [str(write_single(tmp_path / kind, kind)) for kind in ("task_expert", "base")]
    compared = compare_models(folders)
    lines = str(compared).splitlines()
    assert widest(lines) <= 80
    rows = [line for line in lines if " [" in line]
    assert [line.split(",")[0] for line in rows] == ["math", "translate"]
    for line, row in zip(rows, compared.comparisons.to_dict("records"), strict=True):
        for score in compared.scores[compared.scores["task"] == row["task"]]["value"]:
            assert line.count(f" {100 * score:.1f} ") == 1
        assert points(row["difference"]) in line
        assert row["verdict"].split()[0] in line
    assert len(lines) < 20


def test_the_html_of_a_notebook_has_the_same_numbers_and_no_code_of_a_name(tmp_path):
    run = write_run(tmp_path / "run", study_of(baseline=["base"], evaluate=TASKS), level, items=20)
    models = [model.model_copy(update={"label": f"<b>{model.kind}"}) for model in run.models]
    write_run_file(run.path, run.head.model_copy(update={"models": tuple(models)}))
    compared = compare_models([f"{run.path}:{model.label}" for model in models])
    page = compared._repr_html_()
    assert page.count("<table") == 1
    assert page.count("<tr") == 3
    assert "&lt;b&gt;recipe" in page
    assert "<b>recipe" not in page
    for row in compared.comparisons.to_dict("records"):
        assert f"{points(row['difference'])} [" in page


def test_intervals_of_two_single_models_are_over_items(tmp_path, nine_pairs):
    folders = [str(write_single(tmp_path / kind, kind)) for kind in ("task_expert", "base")]
    assert "with 95% intervals over items," in text_of(compare_models(folders))
    names = [f"{nine_pairs.path}:{label}" for label in ("task expert", "base")]
    assert "intervals over experts, seeds and items," in text_of(compare_models(names, ["mgsm_en"]))


def test_long_names_fit_80_columns_and_a_path_is_not_broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["spanish-expert-of-one", "spanish-expert-of-two"]
    for name in names:
        write_single(Path("runs--of--mine-and-others") / name, "soup", items=20)
    compared = compare_models([f"runs--of--mine-and-others/{name}" for name in names])
    text = compared.report(["A table of one."])
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"runs--of--mine-and-others/{name}" in text for name in names)
    assert text.count("A table of one.") == 1
