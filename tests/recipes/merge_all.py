"""Runs many `mergekit-yaml` commands in one process, so that mergekit is imported once.

``python -m tests.recipes.merge_all COMMANDS.json RESULTS.json``: a list of lists of words, the
first of each `mergekit-yaml`; the results are the errors in the same order, null where none.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path


def main() -> None:
    import layerswap_method

    layerswap_method.register()
    from mergekit.scripts.run_yaml import main as mergekit_yaml

    errors: list[str | None] = []
    for words in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        try:
            mergekit_yaml.main(args=words[1:], standalone_mode=False)
            errors.append(None)
        except (Exception, SystemExit):
            errors.append(traceback.format_exc())
    Path(sys.argv[2]).write_text(json.dumps(errors), encoding="utf-8")


if __name__ == "__main__":
    main()
