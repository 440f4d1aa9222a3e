"""Verdicts of comparisons: corrected p, and the study's margin."""

import numpy as np
import pandas as pd
import pytest

from ablations.report.compare import (
    BETTER,
    NO_RESULT,
    ONE_MODEL,
    SAME,
    UNCLEAR,
    WORSE,
    with_verdicts,
)
from tests.report.runs import study_of, write_run
from tests.report.test_compare import TASK, compared, one


@pytest.mark.parametrize(
    ("difference", "p", "p_margin", "higher", "verdict"),
    [
        (0.05, 0.01, 0.9, True, BETTER),
        (0.05, 0.01, 0.9, False, WORSE),
        (-0.05, 0.01, 0.9, True, WORSE),
        (0.001, 0.6, 0.01, True, SAME),
        (0.001, 0.6, 0.2, True, UNCLEAR),
        (0.001, 0.01, 0.001, True, BETTER),
        (0.0, np.nan, np.nan, True, ONE_MODEL),
        (np.nan, np.nan, np.nan, True, NO_RESULT),
    ],
)
def test_verdicts(difference, p, p_margin, higher, verdict):
    row = {"difference": difference, "p": p, "p_margin": p_margin, "higher_is_better": higher}
    for family in ("primary", ""):
        frame = with_verdicts(pd.DataFrame([{**row, "family": family}]))
        assert frame["verdict"].tolist() == [verdict]


def test_a_correction_turns_evidence_into_none():
    rows = [{"p": 0.03, "p_margin": 0.03, "difference": 0.1, "higher_is_better": True}] * 2
    primary = with_verdicts(pd.DataFrame(rows).assign(family="primary"))
    assert primary["verdict"].tolist() == [UNCLEAR, UNCLEAR]
    assert with_verdicts(pd.DataFrame(rows).assign(family=""))["verdict"].tolist() == [BETTER] * 2


def test_the_margin_is_the_studys(tmp_path):
    for margin, verdict in ((30.0, SAME), (0.1, UNCLEAR)):
        study = study_of(baseline=["soup"], report={"margin": margin})
        run = write_run(tmp_path / str(margin), study, lambda *_: 4.5, items=60)
        assert one(compared(run), task=TASK)["verdict"] == verdict
