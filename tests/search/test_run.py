"""Searches of random models, with transformers: split, rounds, going on, budget, bad input."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

import layerswap
from ablations.models.find import Expert
from ablations.runner.run import RunOptions
from ablations.runs.records import HELD_OUT
from ablations.runs.run import load_run
from ablations.search.plan import read_search
from ablations.search.result import round_folder
from ablations.search.rounds import Bound
from ablations.search.run import _left, _parts_left, _progress, dry_run_of_search, run_search
from ablations.study.expansion import expand
from layerswap_method.errors import InputError, LayerSwapError
from tests.cli.test_json import described, object_of
from tests.search.searches import made_search, write_models, write_words_search
from tests.standins.command import told


def options(experts, out, **changes):
    return RunOptions(experts=experts, out=out, backend="hf", **changes)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return the folders of the models by name."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def done(tmp_path_factory, places):
    """Return the study, its experts and the result of a search."""
    folder = tmp_path_factory.mktemp("search")
    study, experts = write_words_search(folder, places)
    return study, experts, run_search(str(study), options(experts, folder / "out"))


def records_of(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*/records/*")}


@pytest.mark.slow
def test_a_search_ends_on_items_that_did_not_choose(done):
    _, _, result = done
    search = result.search
    chosen, reported = (
        {*items["choose_sw"]} for items in (search.choose_items, search.report_items)
    )
    assert not chosen & reported
    assert len(chosen | reported) == 80
    assert {*result.rounds["items"]} == {8, 16}
    assert len(search.candidates) == 6
    run = result.run
    assert {*run.observations[run.observations["task"] == "choose_sw"]["item"]} == {
        *range(len(reported))
    }
    assert {*result.finalists} <= {*run.models}
    assert result.sentences[0].startswith(("Take ", "No setting was shown"))


@pytest.mark.slow
def test_experts_may_be_folders_in_the_study(tmp_path, places):
    study, _ = write_words_search(tmp_path, places)
    document = yaml.safe_load(study.read_text())
    document["experts"] = {
        "base": places["base"],
        "task": [places["math"]],
        "language": {"sw": [places["swahili"]]},
    }
    document["evaluate"]["include_path"] = "tasks"
    study.write_text(yaml.safe_dump(document))
    result = run_search(str(study), options(None, tmp_path / "out"))
    assert str(tmp_path) not in (tmp_path / "out" / HELD_OUT / "run.json").read_text()
    assert len(result.search.candidates) == 6


@pytest.mark.slow
def test_survivors_only_answer_new_items(done):
    _, _, result = done
    answers = result.folder.parent / "answers"
    lines = sum(len(file.read_text().splitlines()) for file in answers.glob("*/choose_sw.jsonl"))
    # Six and then three candidates, four comparators; two log-likelihoods an item, and a first line
    # in the file of each of the ten models.
    report = len(result.search.report_items["choose_sw"])
    assert 0 < lines <= 2 * (10 * 8 + 7 * 8 + 7 * report) + 10


@pytest.mark.slow
def test_the_same_command_does_nothing_again(done, caplog):
    caplog.set_level("INFO")
    study, experts, result = done
    before = records_of(result.folder)
    again = run_search(str(study), options(experts, result.folder))
    assert before == records_of(result.folder)
    assert str(again) == str(result)
    assert again.rounds.equals(result.rounds)
    assert "left:" not in caplog.text
    text, _ = dry_run_of_search(str(study), options(experts, result.folder))
    assert "6 candidates of 6 settings" in text
    assert "up to item 8: done; 3 go on" in text
    assert "report: 3 candidates and the comparators: done" in text
    assert "minutes" not in text


@pytest.mark.slow
def test_a_search_as_json(done, monkeypatch):
    study, experts, result = done
    words = ("search", study, "--experts", experts, "--backend", "hf", "--out")
    monkeypatch.chdir(result.folder.parent)
    made = object_of(*words, result.folder.name)
    assert made["folder"] == str(result.folder)
    assert (made["taken"], made["rival"]) == (result.taken, result.rival)
    assert made["answer"] == [*result.sentences]
    assert made["finalists"] == [*result.finalists]
    assert {*made["rounds"][0]} == described("search") & {*result.rounds}
    assert [row["model"] for row in made["scores"]] == [*result.run.means["model"]]
    assert len(made["comparisons"]) == len(result.comparisons)
    code, output = told(*words, result.folder, "--json", "--dry-run")
    assert code == 2
    assert "--dry-run prints no JSON" in output


@pytest.mark.slow
def test_another_search_is_refused_in_its_folder(done):
    study, experts, result = done
    changes = {"vary": {"bottom_layers": [0, 1]}, "search.seed": 3}
    other = options(experts, result.folder, settings=changes)
    with pytest.raises(InputError, match="a search with other candidates, rounds, choose_items"):
        run_search(str(study), other)


def timed(run, before=0, kinds=()):
    """Return a run of 50 items whose tasks took 5 s and 1 s of loading; `before` were stored."""
    cells = []
    for cell in run.cells:
        tasks = [
            task.model_copy(
                update={
                    "timing_s": {"total": 6.0, "evaluate": 5.0},
                    "evaluation": task.evaluation.model_copy(update={"answers_before": before}),
                }
            )
            for task in cell.task_records
        ]
        if cell.kind in kinds or not kinds:
            cells.append(cell.model_copy(update={"task_records": tuple(tasks)}))
    return dataclasses.replace(run, cells=tuple(cells))


def test_the_rate_is_of_new_answers_and_says_what_fits_a_budget(tmp_path):
    folder = made_search(tmp_path)
    search, run = read_search(folder), load_run(round_folder(folder, 1))
    all_new = _progress(search, [timed(run)], None)
    assert (all_new.seconds_of_answer, all_new.seconds_of_load) == (0.1, 1.0)
    assert _progress(search, [timed(run, before=25)], None).seconds_of_answer == 0.2
    stored = _progress(search, [timed(run, before=50)], 0.001)
    assert (stored.seconds_of_answer, stored.rounds) == (None, 2)
    assert stored.minutes(search.bounds()[0]) is None
    # Both rounds and the report: 2,600 answers and 24 loads; without the second 2,250 and 17.
    assert _progress(search, [timed(run)], 5).rounds == 2
    cut = _progress(search, [timed(run)], 4.5)
    assert cut.cut_text(2) == (
        "The budget of 4.5 minutes leaves 1 of 2 rounds: fewer items have chosen."
    )
    base_alone = _progress(search, [timed(run, kinds=("base",))], 3)
    assert base_alone.rounds == 0
    assert "one round and the report take 4 by the rate" in base_alone.too_small_text(
        search.bounds()
    )
    assert "left: at most 3.7 minutes by the rate so far (2,100 answers, 14 loads)" in "".join(
        _left(search, all_new, search.bounds()[1:])
    )


def test_what_is_left_counts_the_items_of_each_task(tmp_path):
    folder = made_search(tmp_path, floors={"pocket_comprehension_sw": 2}, floor_items=900)
    search = read_search(folder)
    *rounds, report = _parts_left(search, folder)
    assert {*rounds, report} == {Bound(0, 0)}
    assert search.bounds()[-1] == Bound(7 * (250 + 900), 7)
    record = load_run(folder / HELD_OUT).cells[0].task_records[-1]
    assert record.task == "pocket_comprehension_sw"
    (folder / HELD_OUT / "records" / f"{record.key}.jsonl").unlink()
    *rounds, report = _parts_left(search, folder)
    assert report == Bound(900, 1)


def test_the_cost_is_that_of_the_models_and_items_of_each_study(tmp_path, places):
    study, experts = write_words_search(
        tmp_path,
        places,
        baseline=["base", "weighted_soup", "ties"],
        search={"rounds": [8, 16], "floors": {"short_sw": 5}},
    )
    _, search = dry_run_of_search(str(study), options(experts, tmp_path / "out"))
    names = [one.name for one in search.candidates]
    first, second = search.study_of_round(1, names), search.study_of_round(2, names[:3])
    studies = [first, second, search.study_of_report(names[:3])]
    found = {name: Expert(name, Path(place)) for name, place in places.items()}
    models = [len(expand(one, found, None)[0]) for one in studies]
    assert models == [12, 9, 9]
    items = [sum(map(len, one.evaluate.items.values())) for one in studies]
    assert items[2] == len(search.report_items["choose_sw"]) + len(search.report_items["short_sw"])
    items[1] -= items[0]
    assert search.bounds() == tuple(Bound(m * n, m) for m, n in zip(models, items, strict=True))


def test_settings_of_equal_weights_are_one_candidate_and_a_comparator_is_none(tmp_path):
    places = write_models(tmp_path, is_outside_trained=False)
    vary = {"bottom_layers": [0, 1, 2], "top_layers": [0], "non_layer": ["average", "base"]}
    study, experts = write_words_search(tmp_path, places, vary=vary)
    text, search = dry_run_of_search(str(study), options(experts, tmp_path / "out"))
    assert [one.layers for one in search.candidates] == ["█···", "██··"]
    assert max(len(line) for line in text.partition("candidates of")[0].splitlines()) <= 100
    text = " ".join(text.split())
    for lost, first in (
        ("b=0 u=0 non_layer=average", "task expert"),
        ("b=0 u=0 non_layer=base", "task expert"),
        ("b=1 u=0 non_layer=base", "layer swap b=1 u=0 non_layer=average"),
    ):
        assert f"layer swap {lost} has the weights of the {first}: no candidate." in text
    one = options(experts, tmp_path / "one", settings={"vary.bottom_layers": [0]})
    with pytest.raises(InputError, match=r"needs two\n  - layer swap .* of the task expert: no"):
        dry_run_of_search(str(study), one)


@pytest.mark.slow
def test_a_budget_cuts_rounds_and_says_so(done, tmp_path):
    study, experts, result = done
    answers = result.folder.parent / "answers"
    settings = {"search.rounds": [4, 8, 16, 32]}
    shared = options(experts, tmp_path / "shared", answers=answers, settings=settings)
    assert run_search(str(study), shared, 0.0001).progress.rounds == 4  # stored ones take no time
    fresh = options(experts, tmp_path / "fresh", settings=settings)
    with pytest.raises(LayerSwapError, match="too small: one round and the report take"):
        run_search(str(study), fresh, 0.0001)
    assert [cell.kind for cell in load_run(tmp_path / "fresh" / "round_1").cells] == ["base"]


def test_a_dry_run_states_the_bound_and_writes_nothing(tmp_path, places):
    study, experts = write_words_search(tmp_path, places)
    words = ["search", study, "--experts", experts, "--backend", "hf", "--dry-run"]
    code, text = told(*words, "--out", tmp_path / "out")
    assert code == 0
    assert "round 1: 6 candidates and the comparators, up to item 8: 160 answers, 10 loads" in text
    assert "round 2: 3 candidates and the comparators, up to item 16: 112 answers, 7 loads" in text
    assert "minutes: known after the first round" in text
    assert "held-out comparison: With " in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("choose", "floors", "parallel"),
    [
        ("read_sw", {}, "read_sw, choose_sw"),
        ("short_sw", {}, None),
        ("short_sw", {"read_sw": 5}, "choose_sw, read_sw"),
    ],
)
def test_an_item_chooses_or_reports_whatever_the_task(choose, floors, parallel, tmp_path, places):
    search = {"report": "choose_sw", "choose": choose, "floors": floors}
    study, experts = write_words_search(tmp_path, places, search=search)
    _, search = dry_run_of_search(str(study), options(experts, tmp_path / "out"))
    assert {*search.choose_items} == {choose, *floors}
    assert {*search.report_items} == {"choose_sw", *floors}
    of_short = search.choose_items.pop("short_sw", range(30))
    assert len(of_short) == 30
    chosen, reported = (
        {row for rows in items.values() for row in rows}
        for items in (search.choose_items, search.report_items)
    )
    assert not chosen & reported
    assert len(chosen | reported) == 80
    notes = [note for note in search.notes if "taken to be parallel" in note]
    assert [note.rpartition(": ")[2] for note in notes] == ([f"{parallel}."] if parallel else [])


def test_an_item_that_reports_in_another_task_does_not_choose(tmp_path, places):
    search = {"report": "choose_sw", "choose": "short_sw"}
    study, experts = write_words_search(tmp_path / "a", places, shared_items=12, search=search)
    _, found = dry_run_of_search(str(study), options(experts, tmp_path / "out"))
    assert sorted(found.choose_items["short_sw"]) == [*range(12, 30)]
    assert sorted(found.report_items["choose_sw"]) == [*range(80)]
    assert "12 items of short_sw report in another task, and do not choose." in found.notes
    study, experts = write_words_search(tmp_path / "b", places, shared_items=29, search=search)
    cause = "short_sw: 1 item of 30, 29 of which report in another task, would choose; take more"
    with pytest.raises(InputError, match=cause):
        dry_run_of_search(str(study), options(experts, tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vary": {"experts.task": ["math"], "bottom_layers": [0, 1]}}, "a search chooses a sett"),
        ({"vary": {"bottom_layers": [1]}}, "vary has 1 setting with weights of its own"),
        ({"recipe": None, "vary": None}, "it has no recipe and vary: nothing to choose from"),
        ({"search": {"report": "chose_sw"}}, "unknown task 'chose_sw'; did you mean 'choose_sw'"),
        ({"search": {"floors": {"choose_sw": 1}}}, "choose_sw is what chooses or reports"),
        ({"search": {"rounds": [20, 10]}}, r"must grow from round to round"),
        ({"search": {"share": 0.999}}, "would report; take more items"),
        (
            {"evaluate": {"tasks": ["choose_sw"], "items": {"choose_sw": [1, 2, 3]}}},
            "evaluate.items: a search divides the items itself; write evaluate.limit",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(changes, text, tmp_path, places):
    study, experts = write_words_search(tmp_path, places, **changes)
    code, output = told("search", study, "--experts", experts, "--backend", "hf", "--dry-run")
    assert code == 2
    assert text in " ".join(output.split())


def test_a_budget_is_above_zero(tmp_path, places):
    study, experts = write_words_search(tmp_path, places)
    with pytest.raises(InputError, match="--budget is 0; give minutes above 0"):
        layerswap.search(study, experts=experts, budget=0)
    with pytest.raises(InputError, match="--budget is -1; give minutes above 0"):
        dry_run_of_search(str(study), options(experts, tmp_path / "out"), -1)


def test_tasks_of_an_experts_file_take_the_place_of_the_study_s(tmp_path, places):
    study, experts = write_words_search(
        tmp_path,
        places,
        search={"report": "pocket_math_sw"},
        evaluate={"tasks": ["pocket_math_sw"]},
    )
    experts.write_text(f"{experts.read_text()}tasks: {{pocket_math_sw: choose_sw}}\n")
    text, _ = dry_run_of_search(str(study), options(experts, tmp_path / "out"))
    assert "(choose_sw)" in text


def test_a_folder_of_something_else_is_refused(tmp_path, places):
    study, experts = write_words_search(tmp_path, places)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(InputError, match="is not empty"):
        run_search(str(study), options(experts, tmp_path / "out"))
    (tmp_path / "out" / "search.json").write_text(json.dumps({"name": 1}))
    with pytest.raises(InputError, match=r"search\.json: cannot be read"):
        read_search(tmp_path / "out")
