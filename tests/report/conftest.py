"""Made-up runs that several files look at (see `runs`), and the browser that shows pages."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from tests.report.runs import BASELINES, level, study_of, write_run

REASON = 'engine died: <b>CUDA</b> & "100 %" of $memory_1$'


@pytest.fixture(scope="session")
def nine_pairs(tmp_path_factory):
    """Two languages, 3 x 3 experts each, four baselines, transition zone off and on; one failed."""
    study = study_of(
        name="transition_zone",
        experts={
            "task": ["math_1", "math_2", "math_3"],
            "language": {"sw": ["swh_1", "swh_2", "swh_3"], "te": ["tel_1", "tel_2", "tel_3"]},
        },
        baseline=BASELINES,
        vary=[
            {"bottom_transition": 0, "top_transition": 0},
            {"bottom_transition": 1, "top_transition": 1},
        ],
        evaluate={
            "tasks": ["mgsm_en"],
            "languages": {"sw": ["mgsm_sw", "translate_sw"], "te": ["mgsm_te"]},
        },
    )
    folder = tmp_path_factory.mktemp("nine_pairs")
    return write_run(folder, study, level, items=80, failed={"soup math_1+swh_2": REASON})


@pytest.fixture(scope="session")
def nine_settings(tmp_path_factory):
    """Nine settings: b=2 is best, b=1 as good as one can see, b=0 worse; in English all alike."""
    study = study_of(vary={"bottom_layers": [0, 1, 2], "top_layers": [0, 1, 2]}, baseline=["soup"])
    gain = {0: -1.2, 1: 0.95, 2: 1.0}

    def ability(cell, task):
        return 0.0 if task.endswith("en") else gain.get(cell.values.get("bottom_layers"), -2.0)

    return write_run(tmp_path_factory.mktemp("nine_settings"), study, ability, items=250)


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # As root, which CI is, its own sandbox does not start.
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
