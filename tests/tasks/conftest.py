"""One evaluation that several files look at."""

import pytest

from ablations.scoring.records import Evaluation
from tests.standins.scripted import OURS, ask, gold, task_names


@pytest.fixture(scope="session")
def right() -> Evaluation:
    """Every task of ours, answered with the gold text."""
    return ask(gold, task_names(*OURS))
