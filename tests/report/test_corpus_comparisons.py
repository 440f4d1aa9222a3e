"""Comparisons of metrics that are a number for a whole corpus: BLEU and chrF."""

from dataclasses import replace
from pathlib import Path

import pytest

from ablations.report.comparisons import OVER_ITEMS, Comparer, Comparison, compare_all
from ablations.report.observations import Observations
from ablations.report.wording import noise_lines, verdict
from ablations.runner.records import Run, load_run
from ablations.statistics.corpus import CORPUS_METRICS, corpus_metric
from tests.report.runs import study_of, write_run

TRANSITIONS = [{"bottom_transition": t, "top_transition": t} for t in (0, 1)]


def compared(run: Run) -> list[Comparison]:
    return list(compare_all(Observations(run), Comparer(seed=0, level=0.95)))


@pytest.mark.parametrize("metric", ["chrf", "chrf++"])
def test_corpus_metrics_are_compared_by_a_paired_bootstrap(metric: str, tmp_path: Path) -> None:
    study = study_of(vary=TRANSITIONS, evaluate={"tasks": [f"translate_{metric}"]})
    run = write_run(tmp_path, study, lambda p, _: 2.0 * float(p.values["top_transition"]), items=60)
    (found,) = compared(run)
    assert found.outcome is not None
    assert (found.outcome.method, found.outcome.psi) == (OVER_ITEMS, None)
    first, second = (cell.scores[0].value for cell in run.cells)
    assert found.outcome.difference == pytest.approx(second - first)
    assert found.outcome.low > 0
    assert found.outcome.p is not None
    assert found.outcome.p < 0.01
    assert verdict(found) == "evidence that transition zone on is better"
    errors = replace(found, measure=replace(found.measure, higher_is_better=False))
    assert verdict(errors) == "evidence that transition zone off is better"
    (line,) = noise_lines([found], [(found.group, found.measure, 60, 0.5)], 0.95)
    assert f"{CORPUS_METRICS[metric]} differences under about" in line


def test_bleu_is_drawn_with_the_tokenizer_of_its_signature(tmp_path: Path) -> None:
    study = study_of(vary=TRANSITIONS, evaluate={"tasks": ["translate_sw"]})
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=40)
    said = '"signature": "nrefs:1|case:mixed|eff:no|tok:char|smooth:exp|version:2.6.0"'
    for path in (run.path / "records").glob("*/record.json"):
        text = path.read_text(encoding="utf-8")
        assert '"signature": null' in text
        path.write_text(text.replace('"signature": null', said), encoding="utf-8")
    (found,) = compared(load_run(run.path))
    scores = []
    bleu = corpus_metric("bleu", "tok:char")
    assert bleu is not None
    for cell in run.cells:
        pairs = [each.values["bleu"] for each in cell.samples()]
        texts = [[str(pair[side]) for pair in pairs] for side in (1, 0)]  # type: ignore[index]
        scores.append(float(bleu.score(bleu.counts(*texts).sum(axis=0).astype(float))))
    assert found.outcome is not None
    assert found.outcome.difference == pytest.approx(scores[1] - scores[0])
