"""Every number of docs/findings.md follows from the result folder that its row links to."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import t

from tests.standins.command import output_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "ablations" / "results"
PAGE = ROOT / "docs" / "findings.md"
SETTINGS = re.compile(r"lr × [\d.]+|\b[bu]=\d+")


def comparison(folder, task, second, first=""):
    """Return a stored difference, such as "+5.9 [+3.0, +9.0]".

    `first` and `second` are patterns for the whole name of a model.
    """
    frame = pd.read_csv(RESULTS / folder / "comparisons.csv")
    rows = frame[(frame["task"] == task) & frame["second"].str.fullmatch(second)]
    rows = rows[rows["first"].str.fullmatch(first or ".*")]
    assert len(rows) == 1, rows[["first", "second"]]
    return interval(*rows.iloc[0][["difference", "low", "high"]])


def interval(value, low, high):
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def students_t(values):
    """Return the mean and its interval over languages or bases as a sample."""
    sample = pd.Series(values)
    half = t.ppf(0.975, len(sample) - 1) * sample.std() / math.sqrt(len(sample))
    return interval(sample.mean(), sample.mean() - half, sample.mean() + half)


def real_model(folder, *seconds):
    return [comparison(folder, MINIMAL_PAIRS, second, "layer swap") for second in seconds]


def compared(first, second, metric="operation"):
    """Return the difference of two models of two runs on the same items: FOLDER:MODEL each."""
    models = [f"{RESULTS}/{model}" for model in (first, second)]
    output = output_of("compare", *models, "--tasks", MINIMAL_PAIRS, "--metric", metric)
    (difference,) = re.findall(r"[+-]\d+\.\d \[[^]]*\]", output)
    return difference


def zone(folder, task, model, width):
    return comparison(folder, task, f"{model} t_b=0 t_u=0", f"{model} t_b={width} t_u={width}")


def task_arithmetic(weight):
    weights = (f"models.{model}.parameters.weight={weight}" for model in (0, 1))
    second = " ".join(["real_model_sum:task arithmetic", *weights])
    return compared("real_model:layer swap", second)


def over_bases(other):
    claim = json.loads((RESULTS / "pocket_claim" / "claim.json").read_text())
    scores = [base["scores"] for base in claim["bases"] if base["takes_part"]]
    swap, second = (
        [sum(base[model]["pocket_math_sw"]) / 3 for base in scores] for model in ("swap", other)
    )
    return students_t([a - b for a, b in zip(swap, second, strict=True)])


MATH, BLEU, MINIMAL_PAIRS = "pocket_math_sw", "pocket_translate_en_sw", "smol_math_twins_es"
DISJOINT = "layer swap task=math_disjoint.*"
SWAP = "layer swap task=math_1-3.*"
USUAL = "real_model_layers:layer swap b=5 u=2"
FAR, NEAR = "layer swap task=math_lr_x3.*", "layer swap task=math_lr_tenth.*"

ROWS = {
    "Does a swap beat both experts and the soup?": lambda: real_model(
        "real_model", "task expert", "language expert", "soup"
    ),
    "And in French?": lambda: [
        comparison("real_model_french", "smol_math_twins_fr", second, "layer swap")
        for second in ("task expert", "language expert", "soup")
    ],
    "And other merges, joint training?": lambda: [
        *real_model("real_model", "weighted soup", "TIES"),
        task_arithmetic("1.0"),
        task_arithmetic("0.75"),
        compared("real_model:layer swap", "real_model_joint:task expert"),
    ],
    "And if the language expert was trained in the swapped layers alone?": lambda: [
        compared("real_model_outer:layer swap", "real_model_layers:layer swap b=5 u=2"),
        *real_model("real_model_outer", "task expert", "soup"),
        *real_model("real_model_disjoint", "task expert", "soup"),
    ],
    "Is it the language expert that helps?": lambda: [
        compared("real_model_disjoint:layer swap", "real_model_permuted:layer swap"),
        *(real_model(f"real_model_{x}", "task expert")[0] for x in ("base", "other_language")),
        compared(USUAL, "real_model_other_language:layer swap"),
    ],
    "Can the swap translate like the language expert?": lambda: [
        comparison("real_model_own_tasks", "smol_translate_twins_en_es", second, "layer swap")
        for second in ("language expert", "soup")
    ],
    "Does a swap beat the math expert on five pocket bases?": lambda: (
        [over_bases(other) for other in ("task_expert", "soup")]
    ),
    "Does a swap keep both skills": lambda: [
        comparison("disjoint", MATH, "task expert .*", DISJOINT),
        *(
            comparison("disjoint", BLEU, f"{second} .*", DISJOINT)
            for second in ("task expert", "language expert", "soup")
        ),
    ],
    "Does the number of layers matter?": lambda: [
        comparison("real_model_layers", MINIMAL_PAIRS, "layer swap b=0 u=0", f"layer swap {counts}")
        for counts in ("b=3 u=1", "b=5 u=2", "b=8 u=4")
    ],
    "Does it matter which layers?": lambda: [
        *(
            comparison(
                "real_model_placement", MINIMAL_PAIRS, "layer swap outer", f"layer swap {other}"
            )
            for other in ("middle", "alternating", "random")
        ),
        compared("real_model_disjoint:layer swap", "real_model_middle:layer swap"),
    ],
    "Does averaging layers at the seams help?": lambda: [
        *(zone("real_model_zones", MINIMAL_PAIRS, "layer swap b=5 u=2", width) for width in (2, 4)),
        *(zone("transition_divergence", MATH, each, 1) for each in (FAR, SWAP, NEAR)),
    ],
    "Does a swap break when experts moved far?": lambda: [
        *real_model("real_model_lr_tenth", "task expert"),
        *real_model("real_model_lr_x3", "task expert"),
        *(
            compared(f"real_model_{far}:layer swap", USUAL, metric)
            for far in ("lr_x3", "far")
            for metric in ("operation", "both_right")
        ),
        comparison("expert_divergence", MATH, "task expert .*", NEAR),
    ],
    "And LoRA experts?": lambda: [
        *real_model("real_model_lora", "task expert"),
        compared("real_model_lora:layer swap", USUAL),
    ],
    "Can experts of two bases be swapped?": lambda: [
        comparison("different_bases", MATH, ".*task=same_size_1-3", ".*task=math_1-3")
    ],
}
"""Start of a row's question -> the numbers of the row, in order."""


def table():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize("question", ROWS)
def test_the_numbers_of_a_row_follow_from_its_results(question):
    (cells,) = [cells for cells in table() if cells[0].startswith(question)]
    numbers = ROWS[question]()
    shown = SETTINGS.sub("", cells[2])
    assert re.findall(r"[+-]?\d+\.\d(?: \[[^]]*\])?", shown) == numbers
    assert not re.search(r"\d", re.sub(r"[+-]?\d+\.\d(?: \[[^]]*\])?", "", shown))


def test_every_row_is_checked_and_complete():
    rows = table()
    assert len(rows) == len(ROWS)
    for cells in rows:
        assert len(cells) == 6
        assert all(cells)
        assert any(cells[0].startswith(question) for question in ROWS)
        folders = re.findall(r"\(\.\./ablations/results/(\w+)\)", cells[5])
        assert folders
        assert all((RESULTS / folder).is_dir() for folder in folders)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path.parent, id=path.parent.name, marks=marks)
        for path in sorted(RESULTS.glob("*/run.json"))
        for marks in [[] if path.parent.name.startswith("real_model") else [pytest.mark.slow]]
    ],
)
def test_a_report_is_made_again_from_a_result(folder, tmp_path):
    output_of("report", folder, "--format", "csv", "--out", tmp_path)
    for name in ("comparisons.csv", "scores.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
