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
VERSIONS = {
    "METHOD_VERSION": (layerswap_method.METHOD_VERSION, "layerswap_method/__init__.py"),
    "SCORING_VERSION": (SCORING_VERSION, "ablations/scoring/__init__.py"),
}


def current(name):
    """Return the version `name` and the numbers as the code makes them now."""
    if name == "METHOD_VERSION":
        from tests.golden.merges import merge_digests
        from tests.standins.merging import merge

        layerswap_method.register()
        with tempfile.TemporaryDirectory() as folder:
            numbers = dict(merge_digests(Path(folder), merge))
    else:
        from tests.golden.scores import evaluation_scores

        numbers = dict(evaluation_scores())
    return {"version": VERSIONS[name][0], "numbers": numbers}


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
