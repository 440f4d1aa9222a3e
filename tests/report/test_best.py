"""Which settings are as good as the best, of models whose abilities we chose."""

from pathlib import Path

from ablations.report.best import Best, best_of
from ablations.report.comparisons import compare_models
from ablations.report.design import recipe_models
from ablations.report.observations import Observations
from ablations.report.primary import halves
from tests.report.runs import Point, study_of, write_run


def _best(folder: Path, gain: float, better: range, task: str) -> tuple[Best, list[float]]:
    """Return what is best of eight settings, and p of those that look worse than it."""

    def ability(point: Point, task: str) -> float:
        return gain * (float(point.values["bottom_layers"] in better) - 0.5)

    vary = {"bottom_layers": list(range(8))}
    study = study_of(baseline=[], vary=vary, evaluate={"tasks": [task]})
    observations = Observations(write_run(folder, study, ability, items=80))
    group, measure = next(iter(observations.measured()))
    settings = [(model,) for model in recipe_models(study)]
    found = best_of(observations, settings, group, measure)
    assert found is not None
    _, testing = halves(observations.items(group, measure), study.evaluate.seed)
    worse = []
    for models in settings:
        pair = found.best, models
        outcome = compare_models(observations, group, measure, pair, testing)
        if outcome is not None and outcome.p is not None and outcome.difference > 0:
            worse.append(outcome.p)
    return found, worse


def test_of_very_different_settings_only_the_best_is_near(tmp_path: Path) -> None:
    found, _ = _best(tmp_path, 5.0, range(7, 8), "math_sw")
    assert found.near == (found.best,)


def test_p_is_corrected_for_all_settings_also_those_that_look_better(tmp_path: Path) -> None:
    seen = 0
    for trial in range(7, 12):
        found, worse = _best(tmp_path / str(trial), 1.0, range(1, 8), f"math{trial}_sw")
        assert (found.number_of, found.items) == (8, 40)
        if worse and min(worse) * 7 >= 0.05:
            assert len(found.near) == 8
            seen += min(worse) * len(worse) < 0.05
    assert seen
