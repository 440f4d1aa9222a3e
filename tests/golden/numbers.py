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

FILE = Path(__file__).parent / "numbers.json"
COMMAND = "python -m tests.golden.numbers"
WHERE = {
    "METHOD_VERSION": "layerswap_method/__init__.py",
    "SCORING_VERSION": "ablations/scoring/__init__.py",
}


def current(name):
    """Return the version `name` and the numbers as the code makes them now."""
    layerswap_method.register()
    if name == "METHOD_VERSION":
        from tests.golden.merges import merge_digests

        with tempfile.TemporaryDirectory() as folder:
            numbers = dict(merge_digests(Path(folder)))
        return {"version": layerswap_method.METHOD_VERSION, "numbers": numbers}
    from tests.golden.scores import evaluation_scores

    return {"version": SCORING_VERSION, "numbers": dict(evaluation_scores())}


def stored():
    """Return version name -> version and numbers in the file."""
    return json.loads(FILE.read_text())


def problem(name, known, now):
    """Return what is wrong with the numbers of the code (`now`) or of the file (`known`)."""
    numbers, made = known["numbers"], now["numbers"]
    changed = [each for each in numbers if each not in made or made[each] != numbers[each]]
    if known["version"] == now["version"] and changed:
        return (
            f"{', '.join(changed)}: changed, and {name} is still {now['version']}. If the change "
            f"is meant, raise {name} in {WHERE[name]} and run {COMMAND}"
        )
    if known["version"] != now["version"] or list(numbers) != list(made):
        return (
            f"{name} is {now['version']} with {len(made)} numbers, the file has version "
            f"{known['version']} with {len(numbers)}: run {COMMAND}"
        )
    return None


def main():
    """Write the file, unless a number changed and its version did not."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    content = {name: current(name) for name in WHERE}
    for name, known in (stored() if FILE.exists() else {}).items():
        if known["version"] == content[name]["version"]:
            told = problem(name, known, content[name]) or ""
            if "changed" in told:
                sys.exit(told)
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
