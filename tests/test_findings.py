"""Every number of docs/findings.md follows from the result folder that its section links to."""

import io
import json
import math
import os
import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from scipy.stats import t

from ablations.cli import main
from ablations.cli.options import pop_settings
from ablations.models.find import Expert
from ablations.report.analysis import analyse
from ablations.runs.run import load_run
from ablations.runs.score_table import SCORES
from ablations.study.expansion import expand
from ablations.study.files import find_file, read_experts_file, read_study, with_experts_file
from tests.standins.command import output_of
from tools import findings_pictures
from tools.findings_pictures import PAGE, PICTURES, read_sections

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "ablations" / "results"


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


def score(folder, model, task):
    """Return a model's score, a mean over its trainings, such as "8.7 [0.0, 29.1]"."""
    frame = analyse(load_run(RESULTS / folder)).score_frame
    (row,) = frame[(frame["model"] == model) & (frame["task"] == task)].to_dict("records")
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * row[key] for key in ("value", "low", "high")))


def students_t(values):
    """Return the mean and its interval over languages or bases as a sample."""
    sample = pd.Series(values)
    half = t.ppf(0.975, len(sample) - 1) * sample.std() / math.sqrt(len(sample))
    return interval(sample.mean(), sample.mean() - half, sample.mean() + half)


def swap_minus(folder, second, task="smol_math_twins_es"):
    return comparison(folder, task, second, "layer swap")


PARTS = {"math expert": "task expert", "language expert": "language expert", "soup": "soup"}
"""What a swap is compared with, by its words on the page -> its name in a run."""


def swap_minus_parts(folder, task="smol_math_twins_es"):
    """Return the differences of the swap to both experts and their average, by their words."""
    return {f"swap minus {words}": swap_minus(folder, part, task) for words, part in PARTS.items()}


def compared(first, second, metric="operation", task="smol_math_twins_es"):
    """Return the difference of two models on the same items, of two runs or one: FOLDER:MODEL."""
    models = [f"{RESULTS}/{model}" for model in (first, second)]
    output = output_of("compare", *models, "--tasks", task, "--metric", metric)
    (difference,) = re.findall(r"[+-]\d+\.\d \[[^]]*\]", output)
    return difference


def flattery(folder, halves=2000):
    """Return by how much the best setting of half of the items is worse on the other half.

    That is its difference to the soup on the half that chose it, minus that on the other: the mean
    over random halves, and the range of 95 % of them.
    """
    analysis = analyse(load_run(RESULTS / folder))
    shown = analysis.shown
    task = shown.primary[shown.languages[0]][0]
    by_model = shown.matrices[task].groupby(level="model").mean().dropna(axis="columns")
    settings = [model.label for model in analysis.models if model.kind == "recipe"]
    gains = (by_model.loc[settings] - by_model.loc["soup"]).to_numpy()
    rng, found = np.random.default_rng(0), []
    for _ in range(halves):
        order = rng.permutation(gains.shape[1])
        choose, report = order[: len(order) // 2], order[len(order) // 2 :]
        best = gains[gains[:, choose].mean(axis=1).argmax()]
        found.append(best[choose].mean() - best[report].mean())
    return interval(np.mean(found), *np.quantile(found, (0.025, 0.975)))


def zone(folder, task, model, width):
    return comparison(folder, task, f"{model} t_b=0 t_u=0", f"{model} t_b={width} t_u={width}")


def layers(folder, second, first, task="smol_math_twins_es"):
    return comparison(folder, task, f"layer swap {second}", f"layer swap {first}")


def one_end(folder, task, ends, both):
    """Return the differences of each end alone, in words -> its layer counts, to its rivals."""
    rivals = {"both ends": f"layer swap {both}", "math expert": "task expert"}
    return {
        f"{end} alone minus {words}": comparison(folder, task, second, f"layer swap {counts}")
        for end, counts in ends.items()
        for words, second in rivals.items()
    }


def zone_weights(task, language, width=1):
    return f"layer swap t_b={width} t_u={width} task_weight={task} language_weight={language}"


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


MATH, BLEU, SPANISH = "pocket_math_sw", "pocket_translate_en_sw", "smol_math_twins_es"
ENGLISH, FRENCH = "smol_math_twins_en", "smol_math_twins_fr"
COMPREHENSION, TRANSLATION = "smol_comprehension_twins_es", "smol_translate_twins_en_es"
NEW_VERBS = "smol_math_twins_new_verbs_es"
MGSM, MSVAMP = "layerswap_mgsm_es", "layerswap_msvamp_es"
MGSM_JA, MGSM_EN = "layerswap_mgsm_ja", "layerswap_mgsm_en"
MSVAMP_JA = "layerswap_msvamp_ja"
DISJOINT = "layer swap task=math_disjoint.*"
SWAP = "layer swap task=math_1-3.*"
USUAL = "real_model_layers:layer swap b=5 u=2"
FAR, NEAR = "layer swap task=math_lr_x3.*", "layer swap task=math_lr_tenth.*"
PREFIX, FUSION = "task expert math_prefix_1-3", "task expert fusion_1-3"


def with_base(run, task):
    """Return what a swap is compared with, and each expert against the base."""
    experts = {
        f"{name} expert minus base": compared(
            f"{run}:{role} expert", f"{run}:base", "exact_match", task
        )
        for name, role in (("language", "language"), ("math", "task"))
    }
    return {**swap_minus_parts(run, task), **experts}


def without_base(run, task):
    """Return what a swap is compared with, and one expert against the other."""
    experts = compared(f"{run}:language expert", f"{run}:task expert", "exact_match", task)
    return {**swap_minus_parts(run, task), "language expert minus math expert": experts}


NUMBERS = {
    "Does a swap beat both experts and their average, in Spanish?": lambda: swap_minus_parts(
        "real_model"
    ),
    "Does it do so in French, too?": lambda: swap_minus_parts("real_model_french", FRENCH),
    "Does it do so on MGSM, the paper's benchmark, with a larger model?": lambda: with_base(
        "qwen_math_es", MGSM
    ),
    "And with a second pair of experts?": lambda: with_base("qwen_math_es_2", MGSM),
    "Does it do so on MGSM in Japanese?": lambda: with_base("qwen_math_ja", MGSM_JA),
    "Does the swap keep math in English, on MGSM?": lambda: with_base("qwen_math_en", MGSM_EN),
    "Does it do so on MSVAMP, with four times as many problems?": lambda: without_base(
        "qwen_msvamp_es", MSVAMP
    ),
    "And on MSVAMP in Japanese, with the second pair?": lambda: without_base(
        "qwen_msvamp_ja", MSVAMP_JA
    ),
    "Does it beat other merges, and one model trained on the data of both experts?": lambda: {
        "swap minus weighted soup": swap_minus("real_model", "weighted soup"),
        "swap minus TIES": swap_minus("real_model", "TIES"),
        "swap minus sum of both changes": task_arithmetic("1.0"),
        "swap minus sum of three quarters of both changes": task_arithmetic("0.75"),
        "swap minus joint training": compared(
            "real_model:layer swap", "real_model_joint:task expert"
        ),
    },
    "Is it the language expert's knowledge that helps?": lambda: {
        "true verbs minus permuted verbs, experts of disjoint layers": compared(
            "real_model_disjoint:layer swap", "real_model_permuted:layer swap"
        ),
        "permuted verbs, experts of disjoint layers: swap minus math expert": swap_minus(
            "real_model_permuted", "task expert"
        ),
        "the base in place of the language expert: swap minus math expert": swap_minus(
            "real_model_base", "task expert"
        ),
        "a French expert in its place: swap minus math expert": swap_minus(
            "real_model_other_language", "task expert"
        ),
        "swap with the Spanish expert minus swap with the French one": compared(
            USUAL, "real_model_other_language:layer swap"
        ),
    },
    "Does it help with verbs that the language expert never saw?": lambda: {
        "swap minus math expert": swap_minus("real_model_translation", "task expert", NEW_VERBS),
        "swap minus soup": swap_minus("real_model_translation", "soup", NEW_VERBS),
    },
    "Can a swap still translate, as its language expert can?": lambda: {
        "swap minus language expert, in BLEU": swap_minus(
            "real_model_own_tasks", "language expert", TRANSLATION
        ),
        "swap minus soup, in BLEU": swap_minus("real_model_own_tasks", "soup", TRANSLATION),
    },
    "Does a swap understand the same verbs in another kind of question?": lambda: swap_minus_parts(
        "real_model_comprehension", COMPREHENSION
    ),
    "Do the pocket models show the gain, too?": lambda: {
        "swap minus math expert": over_bases("task_expert"),
        "swap minus soup": over_bases("soup"),
    },
    "Does a pocket swap beat other merges and joint training?": lambda: {
        "swap minus soup": comparison("table_2", MATH, "soup .*", SWAP),
        "swap minus TIES": comparison("table_2", MATH, "TIES .*", SWAP),
        "joint training minus swap": comparison("table_2", MATH, SWAP, "layer swap task=joint.*"),
    },
    "Can a swap keep both skills, if each expert changed other layers?": lambda: {
        "math: swap minus math expert": comparison("disjoint", MATH, "task expert .*", DISJOINT),
        **{
            f"BLEU: swap minus {words}": comparison("disjoint", BLEU, f"{model} .*", DISJOINT)
            for words, model in PARTS.items()
        },
    },
    "Does a swap still work if its experts moved far from the base?": lambda: {
        "learning rate × 3: swap minus math expert": swap_minus("real_model_lr_x3", "task expert"),
        "learning rate × 3 minus usual swap, operations": compared(
            "real_model_lr_x3:layer swap", USUAL
        ),
        "learning rate × 3 minus usual swap, results": compared(
            "real_model_lr_x3:layer swap", USUAL, "both_right"
        ),
        "learning rate × 10: swap minus math expert": swap_minus("real_model_far", "task expert"),
        "learning rate × 10 minus usual swap, operations": compared(
            "real_model_far:layer swap", USUAL
        ),
        "learning rate × 10 minus usual swap, results": compared(
            "real_model_far:layer swap", USUAL, "both_right"
        ),
        "pocket, learning rate × 3: swap minus math expert": comparison(
            "expert_divergence", MATH, "task expert .*", FAR
        ),
    },
    "Does it work if its experts hardly moved?": lambda: {
        "learning rate × 0.1: swap minus math expert": swap_minus(
            "real_model_lr_tenth", "task expert"
        ),
        "pocket, learning rate × 0.1: swap minus math expert": comparison(
            "expert_divergence", MATH, "task expert .*", NEAR
        ),
    },
    "Does a swap of LoRA experts work?": lambda: {
        "LoRA swap minus math expert": swap_minus("real_model_lora", "task expert"),
        "LoRA swap minus language expert": swap_minus("real_model_lora", "language expert"),
        "LoRA swap minus soup": swap_minus("real_model_lora", "soup"),
        "LoRA swap minus swap of full fine-tunes": compared("real_model_lora:layer swap", USUAL),
        "pocket: LoRA swap minus swap of full fine-tunes": comparison(
            "peft", MATH, SWAP, "layer swap task=math_lora.*"
        ),
    },
    "Do prefixes, or AdapterFusion, do as well?": lambda: {
        "score of math prefixes, English": score("real_model_prefix", PREFIX, ENGLISH),
        "score of math prefixes, Spanish": score("real_model_prefix", PREFIX, SPANISH),
        "LoRA swap minus AdapterFusion, Spanish": compared(
            "real_model_lora_hf:layer swap", f"real_model_prefix:{FUSION}"
        ),
    },
    "Does the number of swapped layers matter?": lambda: {
        **{
            f"{count} layers ({counts}) minus none": layers("real_model_layers", "b=0 u=0", counts)
            for count, counts in ((4, "b=3 u=1"), (7, "b=5 u=2"), (12, "b=8 u=4"))
        },
        "12 layers minus 7": compared("real_model_layers:layer swap b=8 u=4", USUAL),
        "17 layers (b=11 u=6) minus 12": layers("real_model_more_layers", "b=8 u=4", "b=11 u=6"),
        "23 layers (b=15 u=8) minus 12": layers("real_model_more_layers", "b=8 u=4", "b=15 u=8"),
        "pocket: 2 of 8 layers (b=1 u=1) minus none": layers(
            "layer_count", "b=0 u=0", "b=1 u=1", MATH
        ),
    },
    "Which layer counts are best on MGSM?": lambda: {
        f"{counts} minus {words}": comparison("qwen_search", MGSM, second, f"layer swap {counts}")
        for words, second in PARTS.items()
        for counts in ("b=2 u=2", "b=4 u=0", "b=8 u=4")
    },
    "Are the layers of one end enough?": lambda: {
        **one_end(
            "real_model_one_end",
            SPANISH,
            {"bottom five": "b=5 u=0", "top two": "b=0 u=2"},
            "b=5 u=2",
        ),
        "language expert trained in the bottom five alone: swap minus math expert": swap_minus(
            "real_model_bottom", "task expert"
        ),
        "language expert trained in the bottom five alone: minus bottom five and top two": compared(
            "real_model_bottom:layer swap", "real_model_disjoint:layer swap"
        ),
    },
    "Are the layers of one end enough on the pocket?": lambda: {
        **one_end("one_end", MATH, {"bottom layer": "b=1 u=0", "top layer": "b=0 u=1"}, "b=1 u=1"),
        **{
            f"BLEU: {place} layer alone minus both ends": layers("one_end", "b=1 u=1", counts, BLEU)
            for place, counts in (("bottom", "b=1 u=0"), ("top", "b=0 u=1"))
        },
    },
    "Is the best layer count flattered by the items that chose it?": lambda: {
        "pocket: best of 37 counts": flattery("swap_map"),
        "pocket: best of 4 counts": flattery("layer_count"),
        "SmolLM2: best of 4 counts": flattery("real_model_layers"),
    },
    "Does averaging the layers at the seams help?": lambda: {
        **{
            f"{words} averaged layers at each end minus none, b=5 u=2": zone(
                "real_model_zones", SPANISH, "layer swap b=5 u=2", width
            )
            for words, width in (("two", 2), ("four", 4))
        },
        **{
            f"{words} averaged layers at each end minus none, b=8 u=4": zone(
                "real_model_zones", SPANISH, "layer swap b=8 u=4", width
            )
            for words, width in (("two", 2), ("four", 4))
        },
        **{
            f"pocket, one at each end minus none, {rate}": zone(
                "transition_divergence", MATH, model, 1
            )
            for rate, model in (
                ("learning rate × 3", FAR),
                ("usual learning rate", SWAP),
                ("learning rate × 0.1", NEAR),
            )
        },
    },
    "Does it matter how the layers at the seams are weighted?": lambda: {
        **{
            f"{prefix}{words} minus a half": comparison(
                folder, task, zone_weights(1, 1, width), shares
            )
            for prefix, folder, task, width in (
                ("", "real_model_zone_weight", SPANISH, 2),
                ("pocket: ", "zone_weight", MATH, 1),
            )
            for words, shares in (
                ("none", zone_weights(1, 1, width=0)),
                ("a quarter", zone_weights(3, 1, width)),
                ("three quarters", zone_weights(1, 3, width)),
            )
        },
        "three quarters minus a quarter": compared(
            f"real_model_zone_weight:{zone_weights(1, 3, width=2)}",
            f"real_model_zone_weight:{zone_weights(3, 1, width=2)}",
        ),
        **{
            f"pocket: {words} minus none": compared(
                f"zone_weight:{shares}",
                f"zone_weight:{zone_weights(1, 1, width=0)}",
                "exact_match",
                MATH,
            )
            for words, shares in (
                ("a quarter", zone_weights(3, 1)),
                ("three quarters", zone_weights(1, 3)),
            )
        },
    },
    "Whose embeddings should a swap take, if the experts trained theirs?": lambda: {
        **{
            f"{words} embeddings minus their average": comparison(
                "real_model_embeddings",
                SPANISH,
                "layer swap non_layer=average",
                f"layer swap non_layer={source}",
            )
            for words, source in (
                ("math expert's", "task"),
                ("language expert's", "language"),
                ("base's", "base"),
            )
        },
        "swap with averaged embeddings minus math expert": comparison(
            "real_model_embeddings", SPANISH, "task expert", "layer swap non_layer=average"
        ),
    },
    "Can experts of two bases be swapped?": lambda: {
        "one base minus two bases of one size": comparison(
            "different_bases", MATH, ".*task=same_size_1-3", ".*task=math_1-3"
        ),
        "one base minus two bases of two sizes": comparison(
            "different_bases", MATH, ".*task=other_size_1-3", ".*task=math_1-3"
        ),
        "BLEU of the swap of two bases of one size": score(
            "different_bases", "layer swap task=same_size_1-3", BLEU
        ),
        "BLEU of the swap of two bases of two sizes": score(
            "different_bases", "layer swap task=other_size_1-3", BLEU
        ),
    },
    "Does it matter which layers are swapped?": lambda: {
        **{
            f"{place} minus outer layers": layers("real_model_placement", "outer", place)
            for place in ("middle", "alternating", "random")
        },
        "experts trained in these layers: middle minus outer": compared(
            "real_model_middle:layer swap", "real_model_disjoint:layer swap"
        ),
        "pocket: middle minus outer layers": layers(
            "placement", "outer b=1 u=1", "middle b=1 u=1", MATH
        ),
    },
    "Does it gain more with a language expert trained in the swapped layers alone?": lambda: {
        "swap minus swap of usual experts": compared("real_model_outer:layer swap", USUAL),
        "swap minus math expert": swap_minus("real_model_outer", "task expert"),
        "swap minus soup": swap_minus("real_model_outer", "soup"),
        "math expert of the other layers alone: swap minus it": swap_minus(
            "real_model_disjoint", "task expert"
        ),
        "math expert of the other layers alone: swap minus soup": swap_minus(
            "real_model_disjoint", "soup"
        ),
    },
    "Must all of an expert's change be kept?": lambda: {
        f"{words}: a tenth minus all": comparison(
            "keep_fraction",
            task,
            "delta revert keep_fraction=1.0",
            "delta revert keep_fraction=0.1",
        )
        for words, task in (("English math", "pocket_math_en"), ("target-language math", MATH))
    },
}
"""Heading of a section -> the rows of its table."""


@pytest.mark.parametrize("question", NUMBERS)
def test_the_numbers_of_a_section_follow_from_its_results(question):
    assert read_sections()[question].numbers == NUMBERS[question]()


def test_every_question_is_checked():
    assert list(read_sections()) == list(NUMBERS)


@pytest.mark.parametrize("question", NUMBERS)
def test_a_section_is_complete_and_its_answer_can_be_read_alone(question):
    section = read_sections()[question]
    (answer,) = re.findall(r"\*\*(.+?)\*\*", section.text, re.DOTALL)
    assert re.search(r"SmolLM2-135M|Qwen2.5-Coder-1.5B|pocket", answer), "names no model"
    assert re.search(r"Spanish|French|Japanese|English|target language", answer), (
        "names no language"
    )
    assert not re.search(r"\bequal|\bas good as|\bthe same score", answer)
    holds_zero = [
        name
        for name, low, high in re.findall(
            r"^\| (.+) \| [+-][\d.]+ \[(.+), (.+)\] \|$", section.text, re.M
        )
        if float(low) < 0 < float(high)
    ]
    if holds_zero:
        assert re.search(r"cannot tell|\bno\b|\bNo\b|\bnot\b|within", answer), holds_zero
    assert re.search(r"^Rests on: .*\b(planned|exploratory)", section.text, re.M | re.DOTALL)
    folders = re.findall(r"\(\.\./ablations/results/(\w+)\)", section.text)
    assert folders
    assert all((RESULTS / folder).is_dir() for folder in folders)
    assert "(../ablations/LOG.md#" in section.text
    assert re.search(r"Made by `|removed", section.text)


PRINTS_ITS_WORDS = """layerswap() { printf '%q ' "$@"; echo; }"""


def runs_of(section):
    """Yield each `layerswap run` or `search` that the commands of a section start, as its words."""
    for command in re.findall(r"`([^`]+)`", section.text.partition("Made by ")[2]):
        lines = command.replace("\n", " ")
        if command.startswith("make "):
            words = [*shlex.split(command), "-n"]
            alone = {**os.environ, "MAKEFLAGS": ""}  # in a `make test` it is that make's
            lines = subprocess.check_output(words, cwd=ROOT, env=alone, text=True)
        for line in lines.replace("\\\n", " ").splitlines():
            if re.search(r"\blayerswap (run|search) ", line):
                # The shell says what its loops and variables come to.
                shell = f"{PRINTS_ITS_WORDS}; {re.sub(r'[^ ]*/layerswap', 'layerswap', line)}"
                for words in subprocess.check_output(["bash", "-c", shell], text=True).splitlines():
                    yield shlex.split(words)


def planned_study(command, *words):
    """Return the study that `layerswap run` or `search` plans, and its experts' paths by name."""
    found = main.get_command(click.Context(main), command)
    options = found.make_context(command, [*words]).params
    settings = pop_settings(options, "evaluate.")
    file = read_study(find_file(options["study"], "study"), settings)
    experts = options["experts"]
    experts = read_experts_file(find_file(experts, "experts") if experts else file.experts_file)
    places = {name: entry.path for name, entry in experts.experts.items()}
    return with_experts_file(file.study, experts, settings), places


def facts_of(cells, places):
    """Return what tells models apart: their kind, experts, layers and other settings."""
    in_plan = re.compile(r"experts\.|placement|seed|(bottom|top)_(layers|transition)")
    for cell in cells:
        experts = {role: places[name].rpartition("/")[2] for role, name in cell["experts"].items()}
        values = {name: v for name, v in cell["values"].items() if not in_plan.match(name)}
        yield json.dumps([cell["kind"], experts, cell["plan"], values], sort_keys=True)


def tasks_of(evaluate):
    return {*evaluate["tasks"]}.union(*evaluate["languages"].values())


def main_tasks(evaluate):
    """Return the tasks in the target language; all where a run does not tell them apart."""
    return set().union(*evaluate["languages"].values()) or {*evaluate["tasks"]}


@pytest.mark.parametrize("question", NUMBERS)
def test_the_commands_of_a_section_make_its_results(question):
    """The models, the tasks and the number of items."""
    section = read_sections()[question]
    planned = [planned_study(*words) for words in runs_of(section)]
    for name in re.findall(r"\(\.\./ablations/results/(\w+)\)", section.text):
        if name == "pocket_claim":  # its program was removed
            continue
        data = json.loads((RESULTS / name / "run.json").read_text())
        scored = data["study"]["evaluate"]
        made = set()
        for study, places in planned:
            evaluate = study.evaluate.model_dump()
            if evaluate["limit"] == scored["limit"] and main_tasks(scored) <= tasks_of(evaluate):
                experts = {expert: Expert(expert, Path(expert)) for expert in places}
                cells, _ = expand(study, experts, data["num_layers"])
                made |= {*facts_of([cell.model_dump(mode="json") for cell in cells], places)}
        assert {*facts_of(data["cells"], data["experts"])} <= made, name


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.glob("qwen_*")))
def test_scores_follow_from_the_answers_without_this_package(folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (RESULTS / "README.md").read_text()
    (program,) = re.findall(r"```python\n(import pandas as pd\n\nFOLDER.+?)```", page, re.DOTALL)
    program = re.sub(r"(?<=results/)\w+", folder, program, count=1)
    phrase = {"ja": "答えは", "en": "The answer is"}.get(folder[-2:], "La respuesta es")
    program = re.sub(r'(?<=PHRASE = ")[^"]+', phrase, program, count=1)
    names: dict = {}
    exec(compile(program, "README.md", "exec"), names)
    assert names["FOLDER"].endswith(folder)
    scores = pd.read_csv(RESULTS / folder / "scores.csv")
    stored = scores[scores["filter"].eq("strict-match") & scores["metric"].eq("exact_match")]
    assert names["right"].mean().to_dict() == dict(
        zip(stored["model"], stored["value"], strict=True)
    )


@pytest.mark.parametrize(
    ("folder", "task"), [("real_model", SPANISH), ("real_model_french", FRENCH)]
)
def test_with_each_of_nine_pairs_the_swap_is_above_experts_and_soup(folder, task):
    scores = pd.read_csv(RESULTS / folder / "scores.csv")
    scores = scores[(scores["task"] == task) & (scores["metric"] == "operation")]
    by_model = dict(list(scores.groupby("model")))
    pairs = by_model["layer swap"]
    for model, keys in {
        "task expert": ["task_expert"],
        "language expert": ["language_expert"],
        "soup": ["task_expert", "language_expert"],
    }.items():
        both = pairs.merge(by_model[model], on=keys, suffixes=("", "_other"))
        assert (len(both), sum(both["value"] > both["value_other"])) == (9, 9), model


@pytest.mark.skipif(
    f"matplotlib=={version('matplotlib')}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="another matplotlib draws other pixels",
)
@pytest.mark.parametrize("name", findings_pictures.DRAWN)
def test_a_picture_is_drawn_again_from_the_results(name):
    shipped = imread(PICTURES / name)
    np.testing.assert_array_equal(imread(io.BytesIO(findings_pictures.draw(name))), shipped)


@pytest.mark.parametrize("name", findings_pictures.DRAWN)
def test_a_picture_is_shown(name):
    assert any(name in page.read_text() for page in (PAGE, PAGE.with_name("report.md")))


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path.parent, id=path.parent.name, marks=marks)
        for path in sorted(RESULTS.glob("*/run.json"))
        for marks in [[] if path.parent.name == "real_model" else [pytest.mark.slow]]
    ],
)
def test_a_report_is_made_again_from_a_result(folder, tmp_path):
    output_of("report", folder, "--format", "csv", "--out", tmp_path)
    for name in ("comparisons.csv", "scores.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_shipped_tables_of_scores_have_one_header():
    heads = {path: path.read_text().split("\n", 1)[0] for path in RESULTS.glob("*/scores.csv")}
    assert len(heads) >= 48
    assert {path.parent.name for path, head in heads.items() if head != ",".join(SCORES)} == set()
