"""Studies to search: of random models that choose words, and of models with chosen abilities."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from ablations.runs.records import HELD_OUT
from ablations.search.plan import Candidate, Search, split_pools, write_search
from ablations.search.result import round_folder, scores_of_round, survivors
from ablations.search.rounds import halving
from tests.report.runs import BASELINES, level, study_of, write_run
from tests.standins.studies import study_document, write_expert, write_yaml
from tests.standins.tasks import MEAN, write_rows, write_task
from tests.standins.word_models import WORDS

VARY = {"bottom_layers": [0, 1, 2], "top_layers": [0, 1], "non_layer": ["average"]}


def write_models(folder, *, is_outside_trained=True):
    """Write random models and return their folders by name.

    Without `is_outside_trained` the experts have the base's tensors outside of the layers.
    """
    names = ("base", "math", "swahili")
    places = {name: str(write_expert(folder / name, seed)) for seed, name in enumerate(names)}
    base = load_file(folder / "base" / "model.safetensors")
    outside = {name: tensor for name, tensor in base.items() if ".layers." not in name}
    for name in () if is_outside_trained else names[1:]:
        file = folder / name / "model.safetensors"
        save_file(load_file(file) | outside, file, {"format": "pt"})
    return places


def write_words_search(folder, places, *, items=80, shared_items=0, **changes):
    """Write a study of models, which choose one of two words; return it and its experts file.

    Two of its tasks have the same items, with an `id` of their own as PolyMath's; `short_sw` has 30
    others, but for the first `shared_items`.
    `places` are from `write_models`.
    """
    rows = [
        {
            "prompt": " ".join(WORDS[(n * step + n // 24) % 24] for step in range(1, 6)),
            "choices": [WORDS[n % 24], WORDS[(n * 5 + 7) % 24]],
            "number": n,
            "label": n % 2,
        }
        for n in range(items)
    ]
    short = [{**row, "number": row["number"] + 1000} for row in rows[shared_items:30]]
    short = [*rows[:shared_items], *short]
    for name, of_task in (("choose_sw", rows), ("read_sw", rows), ("short_sw", short)):
        named = [{"id": f"{name}-{row['number']}", **row} for row in of_task]
        data = write_rows(folder / "tasks" / name, named)
        write_task(
            folder / "tasks",
            name,
            data,
            output_type="multiple_choice",
            doc_to_choice="{{choices}}",
            doc_to_target="label",
            generation_kwargs=None,
            metric_list=[{"metric": "acc", **MEAN}],
        )
    experts = {"experts": places, "include_path": str(folder / "tasks")}
    document = {
        "vary": VARY,
        "baseline": ["base", "task_expert"],
        "evaluate": {"tasks": ["choose_sw"], "options": {"batch_size": 16}},
        "search": {"rounds": [8, 16], "floors": {"read_sw": 5}},
        **changes,
    }
    study = write_yaml(folder / "small.yml", study_document(**document))
    return study, write_yaml(folder / "experts.yml", experts)


def made_search(
    folder: Path,
    ability=level,
    *,
    experts=None,
    floors=None,
    items=250,
    floor_items=250,
    rounds=(50, 100),
):
    """Write a search that has ended, of models whose abilities are chosen; return its folder.

    `floor_items` is how many items the plan has for floors; the runs have `items` of all tasks.
    """
    study = study_of(
        baseline=BASELINES,
        vary={"bottom_layers": [1, 2, 3], "top_layers": [0, 1]},
        experts=experts or {"task": ["math"], "language": {"sw": ["swahili"]}},
        search={"floors": floors or {}},
    )
    settings = study.settings()
    choose, report = split_pools(study.experts)
    tasks = ("pocket_math_sw", *(floors or {}))
    search = Search(
        study=study,
        report="pocket_math_sw",
        choose="pocket_math_sw",
        candidates=tuple(
            Candidate(name=f"b={s['bottom_layers']} u={s['top_layers']}", settings=(s,), layers="")
            for s in settings
        ),
        rounds=halving(len(settings), rounds[-1], rounds),
        choose_items={task: tuple(range(rounds[-1])) for task in tasks},
        report_items={
            task: tuple(range(rounds[-1], rounds[-1] + (floor_items if number else items)))
            for number, task in enumerate(tasks)
        },
        choose_experts=choose,
        report_experts=report,
        notes=("A note.",),
    )
    write_search(folder, search)
    names = [one.name for one in search.candidates]
    for number, one in enumerate(search.rounds, 1):
        place = round_folder(folder, number)
        run = write_run(place, search.study_of_round(number, names), ability, items=one.items)
        is_last = number == len(search.rounds)
        names = survivors(scores_of_round(search, run, number, is_last=is_last))
    write_run(folder / HELD_OUT, search.study_of_report(names), ability, items=items)
    return folder
