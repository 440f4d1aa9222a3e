"""How settings compare with each other, of models whose abilities we chose."""

from pathlib import Path

from ablations.report.among_settings import among_settings
from ablations.report.bottom_line import bottom_line
from ablations.report.observations import Observations
from tests.report.runs import Ability, Point, study_of, write_run


def _told(folder: Path, bottoms: list[int], ability: Ability, items: int = 150) -> str:
    study = study_of(baseline=["soup"], vary={"bottom_layers": bottoms})
    observations = Observations(write_run(folder, study, ability, items=items))
    group = observations.groups[0]
    return among_settings(observations, group, observations.measures(group)[0])


def _rising(gain: float) -> Ability:
    return lambda point, _: gain * float(point.values.get("bottom_layers", 0)) - 1.0


def _always_right(point: Point, _: str) -> float:
    return 20.0


def test_two_settings(tmp_path: Path) -> None:
    level = _told(tmp_path / "level", [1, 2], _rising(0.0))
    start = "Between the 2 settings there is no evidence of a difference on math, Swahili: "
    assert level.startswith(f"{start}b=2 minus b=1 is ")
    assert level.endswith("] (exploratory).")
    better = _told(tmp_path / "better", [1, 2], _rising(2.0))
    assert better.startswith("Of the 2 settings b=2 is better on math, Swahili: +")
    assert better.endswith("] compared with b=1 (exploratory).")


def test_equal_scores_are_called_so(tmp_path: Path) -> None:
    both = _told(tmp_path / "both", [1, 2], _always_right)
    assert both == "Both settings score the same on every item of math, Swahili."
    three = _told(tmp_path / "three", [1, 2, 3], _always_right)
    assert three == "All 3 settings score the same on every item of math, Swahili."


def test_a_tie_is_no_best_setting(tmp_path: Path) -> None:
    study = study_of(baseline=["soup"], vary={"bottom_layers": [1, 2]})
    first, among, *_ = bottom_line(write_run(tmp_path, study, _always_right, items=40))
    assert "b=1 u=2 (the first of 2 settings that tie on one half of the items) was comp" in first
    assert among.startswith("Both settings score the same on every item of ")


def test_several_settings_are_corrected_for_all_pairs(tmp_path: Path) -> None:
    level = _told(tmp_path / "level", [0, 1, 2], _rising(0.0))
    start = "Among the 3 settings there is no evidence of a difference on math, Swahili: "
    assert level.startswith(f"{start}the largest (b=")
    assert level.endswith("] (exploratory, p corrected for 3 pairs).")
    differ = _told(tmp_path / "differ", [0, 1, 3], _rising(1.0))
    assert differ.startswith(
        "Among the 3 settings none is significantly better on math, Swahili than b=3; worse than "
        "b=3 are b=0 (-"
    )
    assert "]) and b=1 (-" in differ


def test_one_setting_says_nothing(tmp_path: Path) -> None:
    assert _told(tmp_path, [1], _rising(0.0), items=20) == ""
