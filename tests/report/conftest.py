"""Made-up runs that several files look at; see `runs`."""

import pytest

from tests.report.runs import NINE_PAIRS, study_of, write_run

BASELINES = ["base", "task_expert", "language_expert", "soup"]
ABILITY = {"base": -1.5, "task_expert": -1.0, "language_expert": -1.5, "soup": -1.0}
REASON = 'engine died: <b>CUDA</b> & "100 %" of $memory_1$'


def _ability(point, task):
    bottom = point.values.get("bottom_layers", 0)
    placed = {"middle": -0.4, "random": -0.6}.get(str(point.values.get("placement")), 0.0)
    english = 1.0 if task.endswith("en") else 0.0
    return ABILITY.get(point.kind, -0.8) + 0.5 * float(bottom) + placed + english


@pytest.fixture(scope="session")
def nine_pairs(tmp_path_factory):
    """Two languages, 3 x 3 experts each, four baselines, transition zone off and on; one failed."""
    study = study_of(
        name="transition_zone",
        experts=NINE_PAIRS,
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
    return write_run(folder, study, _ability, items=80, failed={"soup math_1 swh_2": REASON})


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """One pair, b x u in a grid of 3 x 2, two baselines; one cell failed, one was not run."""
    study = study_of(
        name="grid", baseline=BASELINES[:2], vary={"bottom_layers": [0, 1, 2], "top_layers": [0, 1]}
    )
    folder = tmp_path_factory.mktemp("grid")
    failed = {"math+swahili bottom_layers=1 top_layers=1": REASON}
    unrun = frozenset({"math+swahili bottom_layers=2 top_layers=0"})
    return write_run(folder, study, _ability, items=80, failed=failed, unrun=unrun)


@pytest.fixture(scope="session")
def placements(tmp_path_factory):
    """One pair, four placements with two seeds each."""
    study = study_of(
        name="placement",
        baseline=BASELINES,
        vary={"placement": ["outer", "middle", "alternating", "random"], "seed": [0, 1]},
    )
    return write_run(tmp_path_factory.mktemp("placements"), study, _ability, items=80)


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory):
    """Where a session's reports may be written."""
    return tmp_path_factory.mktemp("reports")
