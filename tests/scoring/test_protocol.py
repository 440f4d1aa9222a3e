"""Which options of asking go together, what identifies them, and scores over repeats."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from ablations.scoring.protocol import Protocol, protocol_of
from ablations.scoring.records import Sample, TaskScore
from ablations.scoring.scores import mean_scores, wilson_interval
from ablations.study.schema import Evaluate
from layerswap_method.recipe.problems import problems


def test_two_ways_of_writing_the_same_are_the_same() -> None:
    assert Protocol().asked() == {}
    one = Protocol(apply_chat_template=True, fewshot_as_multiturn=True)
    assert one.asked() == Protocol(apply_chat_template=True).asked()
    written = Protocol(gen_kwargs={"temperature": 0.6, "do_sample": True, "top_p": 0.95})
    assert written.asked() == Protocol(gen_kwargs={"top_p": 0.95, "temperature": 0.6}).asked()
    assert written.asked()["gen_kwargs"] == {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 0,
    }
    study = Evaluate.model_validate({"gen_kwargs": {"max_gen_toks": 9}, "limit": 3})
    assert protocol_of(study) == Protocol(gen_kwargs={"max_gen_toks": 9})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"repeats": 4}, "repeats is 4 and the temperature is 0: every repeat"),
        ({"repeats": 2, "gen_kwargs": {"temperature": 0}}, "set gen_kwargs.temperature above 0"),
        ({"gen_kwargs": {"top_k": 20}}, "top_p and top_k have no effect without sampling"),
        (
            {"gen_kwargs": {"temperature": 1, "do_sample": False}},
            "do_sample is false and temperature",
        ),
        (
            {"gen_kwargs": {"temprature": 1}},
            "gen_kwargs.temprature: unknown key; did you mean 'temperature'",
        ),
        ({"gen_kwargs": {"temperature": "hot"}}, "gen_kwargs.temperature: "),
        ({"enable_thinking": True}, "enable_thinking needs a chat template"),
        (
            {"enable_thinking": True, "apply_chat_template": True},
            "enable_thinking needs think_end_token",
        ),
        ({"fewshot_as_multiturn": True}, "set apply_chat_template: true"),
    ],
)
def test_what_does_not_go_together_is_one_clear_error(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Protocol.model_validate(given)
    (problem,) = problems(Protocol, given, caught.value)
    assert said in problem
    assert "\n" not in problem


def _sample(doc_id: int, repeat: int, value: float) -> Sample:
    texts = {"prompts": ("p",), "target": "t", "responses": ("r",), "answers": ("r",)}
    hashes = dict.fromkeys(("doc_hash", "prompt_hash", "target_hash"), "")
    place = {"task": "t", "filter": "none", "doc_id": doc_id, "repeat": repeat}
    return Sample.model_validate({**place, **texts, **hashes, "values": {"exact_match": value}})


def _repeats(values: np.ndarray) -> TaskScore:
    """Return the score of values of shape [items, repeats]."""
    scores, samples = [], []
    for repeat, column in enumerate(values.T):
        interval = wilson_interval(int(column.sum()), len(column))
        score = TaskScore(
            task="t",
            metric="exact_match",
            filter="none",
            value=float(column.mean()),
            is_share=True,
            interval=interval,
            stderr=None,
            n=len(column),
            higher_is_better=True,
        )
        scores.append((score,))
        samples.append([_sample(item, repeat, float(v)) for item, v in enumerate(column)])
    (found,) = mean_scores(scores, samples, 0.95)
    return found


def _width(score: TaskScore) -> float:
    assert score.interval is not None
    return score.interval.high - score.interval.low


def test_a_score_over_repeats_is_their_mean_with_an_interval_of_both_levels() -> None:
    rng = np.random.default_rng(0)
    # Every item has a chance of its own.
    chances = rng.beta(0.6, 0.6, size=200)
    values = (rng.random((200, 8)) < chances[:, None]).astype(float)
    one, eight = _repeats(values[:, :1]), _repeats(values)
    assert (one.repeats, one.deviation) == (1, None)
    assert (eight.repeats, eight.n) == (8, 200)
    assert eight.value == pytest.approx(values.mean())
    assert eight.deviation == pytest.approx(values.mean(axis=0).std(ddof=1))
    # More samples of an item say more of it, but not as much as more items would.
    pooled = wilson_interval(int(values.sum()), values.size)
    assert pooled.high - pooled.low < _width(eight) < _width(one)
    same = _repeats(np.repeat(values[:, :1], 8, axis=1))
    assert _width(same) == pytest.approx(_width(one), rel=0.02)


def test_intervals_over_repeats_keep_their_level() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        chances = rng.beta(2, 3, size=60)
        values = (rng.random((60, 4)) < chances[:, None]).astype(float)
        interval = _repeats(values).interval
        assert interval is not None
        hits += interval.low <= 2 / 5 <= interval.high
    assert hits >= 186
