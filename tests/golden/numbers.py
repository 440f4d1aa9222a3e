"""The numbers that must not change unless a version is raised, and the file that holds them.

    python -m tests.golden.numbers

writes the file anew, after METHOD_VERSION or SCORING_VERSION was raised. It refuses otherwise.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import layerswap_method
from ablations.scoring import SCORING_VERSION
from tests.golden.merges import merge_digests
from tests.standins.merging import merge
from tests.standins.scripted import OURS, ask, gold, perturbed, task_names

FILE = Path(__file__).parent / "numbers.json"
COMMAND = "python -m tests.golden.numbers"
VERSIONS = {
    "METHOD_VERSION": (layerswap_method.METHOD_VERSION, "layerswap_method/__init__.py"),
    "SCORING_VERSION": (SCORING_VERSION, "ablations/scoring/__init__.py"),
}


def current(name):
    """Return the version `name` and the numbers as the code makes them now."""
    if name == "METHOD_VERSION":
        layerswap_method.register()
        with tempfile.TemporaryDirectory() as folder:
            numbers = dict(merge_digests(Path(folder), merge))
    else:
        numbers = dict(evaluation_scores())
    return {"version": VERSIONS[name][0], "numbers": numbers}


def evaluation_scores():
    """Yield the name of each score, and value, ends of its interval and number of items.

    Generated programs are left out: what holds them differs from machine to machine.
    """
    evaluation = ask(_answer, task_names(*OURS))
    for score in evaluation.scores:
        ends = [] if score.interval is None else [score.interval.low, score.interval.high]
        numbers = [round(number, 10) for number in (score.value, *ends, score.n)]
        yield f"{score.task} {score.metric} {score.filter}", numbers


def _answer(task, item):
    """Return a right answer, a wrong one or a half right one, by the length of the item."""
    which = len(str(sorted(item.items()))) % 3
    if which == 0:
        return gold(task, item)
    if which == 1 or "flores" not in task:
        return perturbed(task, item)
    words = gold(task, item).split()
    return " " + " ".join([*words[len(words) // 2 :], *words[: len(words) // 3]])


def changed(known, now):
    """Return which numbers of the file the code no longer makes."""
    numbers, made = known["numbers"], now["numbers"]
    return [name for name in numbers if made.get(name) != numbers[name]]


def main():
    """Write the file, unless a number changed and its version did not."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    known, now = json.loads(FILE.read_text()), {name: current(name) for name in VERSIONS}
    for name, (version, file) in VERSIONS.items():
        if known[name]["version"] == version and (wrong := changed(known[name], now[name])):
            sys.exit(f"{', '.join(wrong)}: changed; if it is meant, raise {name} in {file}")
    FILE.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
