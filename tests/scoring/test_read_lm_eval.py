"""Scores from lm-eval's result format; the format itself is met in test_lm_eval_backend.py."""

import pytest

from ablations.scoring.observed import join_notes
from ablations.scoring.scores import read_samples, read_scores
from layerswap_method.errors import LayerSwapError


def _logged(doc_id, **values):
    return {
        "doc_id": doc_id,
        "filter": "none",
        "target": "1",
        "arguments": [("prompt", {})],
        "resps": [["said"]],
        "filtered_resps": ["said"],
        "metrics": list(values),
        **{"doc_hash": "d", "prompt_hash": "p", "target_hash": "t"},
        **values,
    }


def _raw(metric, value, items):
    return {
        "samples": {"task": [_logged(i, **{metric: item}) for i, item in enumerate(items)]},
        "results": {
            "task": {"alias": "task", f"{metric},none": value, f"{metric}_stderr,none": "N/A"}
        },
        "higher_is_better": {"task": {metric: metric != "ter"}},
    }


def _only(raw):
    (score,) = read_scores(raw, read_samples(raw), seed=0, level=0.95)
    return score


@pytest.mark.parametrize(
    ("metric", "value", "items", "method"),
    [
        ("exact_match", 0.25, [1.0, 0.0, 0.0, 0.0] * 5, "wilson"),
        ("f1", 0.5, [0.25, 0.75] * 10, "bootstrap"),
        # On lm-eval's scale to 100.
        ("bleu", 50.0, [["a b c d e", "a b c d e"], ["a b c d e", "v w x y z"]] * 10, "bootstrap"),
    ],
)
def test_a_share_has_an_interval(metric, value, items, method):
    score = _only(_raw(metric, value, items))
    assert score.value == pytest.approx(value if value <= 1 else value / 100)
    assert (score.n, score.is_share, score.interval.method) == (20, True, method)
    assert 0 < score.interval.low < score.value < score.interval.high < 1


def test_a_score_that_its_samples_contradict_is_refused():
    with pytest.raises(LayerSwapError, match=r"exact_match,none = 0\.9, its 2 samples give 0\.5"):
        _only(_raw("exact_match", 0.9, [1.0, 0.0]))
    pairs = [["a b c d e", "a b c d e"], ["a b c d e", "v w x y z"]] * 10
    with pytest.raises(LayerSwapError, match=r"bleu,none = 0\.6, its 20 samples give 0\.(5|49999)"):
        _only(_raw("bleu", 60.0, pairs))


def test_perplexity_is_no_share_and_ter_may_pass_one():
    perplexity = _only(_raw("word_perplexity", 17.5, [-3.0, -2.0]))
    assert (perplexity.value, perplexity.is_share, perplexity.interval) == (17.5, False, None)
    ter = _only(_raw("ter", 150.0, [["a b", "c d e"]]))
    assert (ter.value, ter.higher_is_better, ter.interval) == (1.5, False, None)


@pytest.mark.parametrize(
    ("metric", "value", "items", "n"),
    [
        ("inst_level_strict_acc", 0.75, [[True, False], [True, True]], 2),  # IFEval
        ("inst_level_strict_acc", 0.75, [[True], [True, False, True]], 2),
        ("bleu", 40.0, [[["a b", "a c"], "a b"]], 1),  # several references
        ("verdict", 0.5, [{"right": 1}, {"right": 0}], 2),
    ],
)
def test_a_metric_of_lists_is_lm_evals_score_without_an_interval(metric, value, items, n):
    score = _only(_raw(metric, value, items))
    assert score.value in (value, value / 100)
    assert (score.interval, score.n) == (None, n)


def test_items_without_a_number_do_not_count():
    score = _only(_raw("acc", 0.75, [1.0, float("nan"), 1.0, 1.0, 0.0]))  # lm-eval's nanmean
    assert (score.value, score.n) == (0.75, 4)
    assert score.interval.method == "wilson"
    with pytest.raises(LayerSwapError, match="nan, which is no score"):
        _only(_raw("acc", float("nan"), [1.0, float("nan")]))


def test_notes_that_say_the_same_of_several_tasks_are_one():
    notes = ["a: is short", "Percent: of all", "b: is long", "c: is short", "a: is short"]
    assert join_notes(notes) == ["a, c: is short", "Percent: of all", "b: is long"]
    # A sentence with a colon is no note on a task.
    notes = ["Python 3.11: held by the kernel", "no colon here", "Python 3.11: held by the kernel"]
    assert join_notes(notes) == notes[:2]
