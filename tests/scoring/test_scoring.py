"""Options of asking, scores from lm-eval's format and over repeats, and languages of answers."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from ablations.scoring.evaluation import Sample, TaskScore
from ablations.scoring.language_id import (
    FEWEST_LETTERS,
    is_in_language,
    why_not_judged,
    words_of,
)
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, join_notes
from ablations.scoring.protocol import EvaluationProtocol
from ablations.scoring.scores import mean_scores, read_samples, scores_of_samples
from ablations.statistics.intervals import wilson_interval
from ablations.study.schema import Evaluate
from layerswap_method.errors import LayerSwapError
from layerswap_method.recipe.validation import validation_texts
from tests.standins.scripted import PUBLISHED_MGSM, ask


def test_two_ways_of_writing_the_same_are_the_same():
    assert EvaluationProtocol().overrides() == {}
    one = EvaluationProtocol(apply_chat_template=True, fewshot_as_multiturn=True)
    assert one.overrides() == EvaluationProtocol(apply_chat_template=True).overrides()
    given = {"temperature": 0.6, "top_p": 0.95}
    written = EvaluationProtocol(gen_kwargs={"do_sample": True, **given}).overrides()
    assert written == EvaluationProtocol(gen_kwargs=given).overrides()
    assert written["gen_kwargs"] == {"do_sample": True, **given, "top_k": 0}
    study = Evaluate.model_validate({"gen_kwargs": {"max_gen_toks": 9}, "limit": 3})
    assert study.overrides() == EvaluationProtocol(gen_kwargs={"max_gen_toks": 9}).overrides()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"repeats": 4}, "repeats is 4 and the temperature is 0: every repeat"),
        ({"repeats": 2, "gen_kwargs": {"temperature": 0}}, "set gen_kwargs.temperature above 0"),
        ({"gen_kwargs": {"top_k": 20}}, "top_p and top_k have no effect without sampling"),
        ({"gen_kwargs": {"temperature": 1, "do_sample": False}}, "do_sample is false and temper"),
        ({"gen_kwargs": {"temprature": 1}}, "temprature: unknown key; did you mean 'temperature'"),
        ({"enable_thinking": True}, "enable_thinking needs a chat template"),
        ({"enable_thinking": True, "apply_chat_template": True}, "needs think_end_token"),
        ({"fewshot_as_multiturn": True}, "set apply_chat_template: true"),
    ],
)
def test_what_does_not_go_together_is_one_clear_error(given, said):
    with pytest.raises(ValidationError) as caught:
        EvaluationProtocol.model_validate(given)
    (problem,) = validation_texts(EvaluationProtocol, given, caught.value)
    assert said in problem
    assert "\n" not in problem


def _sample(doc_id, repeat, value):
    texts = {"prompts": ("p",), "target": "t", "responses": ("r",), "answers": ("r",)}
    hashes = dict.fromkeys(("doc_hash", "prompt_hash", "target_hash"), "")
    place = {"task": "t", "filter": "none", "doc_id": doc_id, "repeat": repeat}
    return Sample.model_validate({**place, **texts, **hashes, "values": {"exact_match": value}})


def _repeats(values):
    """Return the score of values of shape [items, repeats]."""
    scores, samples = [], []
    for repeat, column in enumerate(values.T):
        place = {"task": "t", "metric": "exact_match", "filter": "none", "n": len(column)}
        interval = wilson_interval(min(int(column.sum()), len(column)), len(column))
        value = {"value": float(column.mean()), "interval": interval, "stderr": None}
        kind = {"is_share": bool(column.max() <= 1), "higher_is_better": True}
        scores.append((TaskScore(**place, **value, **kind),))
        samples.append([_sample(item, repeat, float(v)) for item, v in enumerate(column)])
    (found,) = mean_scores(scores, samples, 0.95)
    return found


def _width(score):
    return score.interval.high - score.interval.low


def test_a_score_over_repeats_is_their_mean_with_an_interval_of_both_levels():
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
    counts = _repeats(20 + values)  # no share
    expected = stats.ttest_1samp(values.mean(axis=1) + 20, 0).confidence_interval(0.95)
    assert (counts.interval.low, counts.interval.high) == pytest.approx(tuple(expected))
    assert _repeats(np.full((3, 2), 20.0)).interval is None


def _logged(doc_id, **values):
    return {
        "doc_id": doc_id,
        "filter": "none",
        "target": "1",
        "arguments": [("prompt", {})],
        "resps": [["said"]],
        "filtered_resps": ["said"],
        "metrics": list(values),
        "doc_hash": "d",
        "prompt_hash": "p",
        "target_hash": "t",
        **values,
    }


def _raw(metric, value, items):
    return {
        "samples": {"task": [_logged(i, **{metric: item}) for i, item in enumerate(items)]},
        "results": {"task": {f"{metric},none": value, f"{metric}_stderr,none": "N/A"}},
        "higher_is_better": {"task": {metric: metric != "ter"}},
    }


def _only(raw):
    """Return the score of the only metric of the task itself."""
    scores = scores_of_samples(raw, read_samples(raw), seed=0, level=0.95)
    (score,) = (score for score in scores if score.metric not in OBSERVED)
    return score


def test_what_is_observed_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    missing = [name for name in OBSERVED if f"`{name}`" not in page]
    assert not missing, f"docs/evaluate.md does not say what {missing} are"


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
    with pytest.raises(LayerSwapError, match=r"match,none = 0\.9, but its 2 samples give 0\.5"):
        _only(_raw("exact_match", 0.9, [1.0, 0.0]))
    pairs = [["a b c d e", "a b c d e"], ["a b c d e", "v w x y z"]] * 10
    with pytest.raises(LayerSwapError, match=r"none = 0\.6, but its 20 samples give 0\.(5|49999)"):
        _only(_raw("bleu", 60.0, pairs))


@pytest.mark.parametrize(
    ("metric", "value", "items", "score"),
    [
        ("inst_level_strict_acc", 0.75, [[True, False], [True, True]], 0.75),  # IFEval
        ("bleu", 40.0, [[["a b", "a c"], "a b"]], 0.4),  # several references
        ("verdict", 0.5, [{"right": 1}, {"right": 0}], 0.5),
        ("word_perplexity", 17.5, [-3.0, -2.0], 17.5),
        ("ter", 150.0, [["a b", "c d e"]], 1.5),
        ("rouge1_max", 37.0, [37.0], 37.0),  # no share: on a scale to 100
    ],
)
def test_what_is_no_mean_of_its_items_is_lm_evals_score_without_an_interval(
    metric, value, items, score
):
    found = _only(_raw(metric, value, items))
    assert (found.value, found.n) == (score, len(items))
    is_share, is_good = metric not in ("word_perplexity", "rouge1_max"), metric != "ter"
    assert found.interval is None or not is_share
    assert (found.is_share, found.higher_is_better) == (is_share, is_good)


def test_items_without_a_number_do_not_count():
    score = _only(_raw("acc", 0.75, [1.0, float("nan"), 1.0, 1.0, 0.0]))  # lm-eval's nanmean
    assert (score.value, score.n) == (0.75, 4)
    assert score.interval.method == "wilson"
    for value in ("nan", "inf"):
        with pytest.raises(LayerSwapError, match=f"{value}, which is not a score"):
            _only(_raw("acc", float(value), [1.0, float(value)]))
    unsaid = _raw("acc", 1.0, [1.0]) | {"higher_is_better": {"task": {"acc": None}}}
    assert _only(unsaid).higher_is_better


def test_notes_that_say_the_same_of_several_tasks_are_one():
    notes = ["a: is short", "b: is long", "c: is short", "Python 3.11: held", "Python 3.11: held"]
    assert join_notes(notes) == ["a, c: is short", "b: is long", "Python 3.11: held"]


SCRIPTS = {"sw": "Latn", "te": "Telu", "bn": "Beng", "ja": "Jpan", "en": "Latn"}


def _languages(text):
    return [code for code, script in SCRIPTS.items() if is_in_language(text, code, script)]


@pytest.mark.parametrize("code", SCRIPTS)
def test_every_real_sentence_is_in_its_language_and_no_other(code):
    texts = []
    for split in ("train", "test"):
        for line in (PUBLISHED_MGSM / f"{code}_{split}.jsonl").read_text().splitlines():
            row = json.loads(line)
            texts += [row["question"], *([row["answer"]] if row["answer"] else [])]
    assert len(texts) == 18
    assert {tuple(_languages(text)) for text in texts} == {(code,)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # English words in it, code and formulas beside it: the rest decides.
        ("Hatua ya kwanza: total = 5 + 6 = 11, so kwa jumla mipira ni 11. Jibu ni 11.", ["sw"]),
        ("```python\ndef answer():\n    return 5 + 6\n```\nKwa hivyo jibu ni mipira 11.", ["sw"]),
        ("\\frac{5}{6} kwa hivyo jibu ni kumi na moja", ["sw"]),
        ("Total 5 + 6 = 11 (step by step). సమాధానం పదకొండు బంతులు ఉన్నాయి.", ["te"]),
        # The other way round.
        ("Roger started with five balls and bought six. So the answer is: సమాధానం 11.", ["en"]),
        # Chinese shares its letters with Japanese, but not kana.
        ("因此罗杰现在总共有十一个网球，所以这个问题的答案是十一个球", []),
        # A real answer: it ends in Japanese, and goes on in Chinese.
        (
            "分け与える必要があるです。答えは40です。<|endoftext|>请提供一个关于数学的题目，题目是“如果"
            "一个数是10，那么这个数的平方是多少？”\n答案：10的平方是100。",
            [],
        ),
        ("答えは40です。標準的な算数の問題です。<|endoftext|>答案是九十元", ["ja"]),
        # Hindi, French: none of the five.
        ("इसलिए रोजर के पास अब कुल ग्यारह गेंदें हैं, उत्तर ग्यारह है", []),
        ("La réponse est donc onze balles de tennis en tout.", []),
    ],
)
def test_mixed_answers_count_for_what_most_of_them_is(text, expected):
    assert _languages(text) == expected


SHORT = ("Jibu: 18", "الجواب هو ١٨.", "The answer is 18.", "答えは11", "11", "`x = 11`", "")


@pytest.mark.parametrize("text", SHORT)
@pytest.mark.parametrize("code", SCRIPTS)
def test_an_answer_of_few_letters_says_nothing_about_its_language(text, code):
    assert is_in_language(text, code, SCRIPTS[code]) is None
    assert is_in_language(text + " x" * FEWEST_LETTERS, code, SCRIPTS[code]) is not None


def test_short_answers_do_not_count_and_their_number_is_said():
    sentences = (
        "Kwa hivyo jumla ya mipira ni kumi na moja.",
        "So it is eleven balls in all.",
    )
    answers = iter([*sentences, "Jibu: 18", "18", " "])
    evaluation = ask(lambda *_: next(answers), ("layerswap_mgsm_sw",))
    n = len({sample.doc_id for sample in evaluation.samples})
    assert n > len(sentences)
    (fidelity,) = (score for score in evaluation.scores if score.metric == LANGUAGE_FIDELITY)
    assert (fidelity.value, fidelity.n) == (0.5, 2)
    assert [note for note in evaluation.notes if "letters" in note] == [
        f"layerswap_mgsm_sw: {n - 2} of {n} answers have fewer than 20 letters and do not count in "
        "language_fidelity"
    ]
    digits = ask(lambda *_: " 18", ("layerswap_mgsm_sw",))
    assert LANGUAGE_FIDELITY not in {score.metric for score in digits.scores}
    assert f"{n} of {n} answers have fewer" in digits.notes[0]


def test_the_words_are_what_is_left_without_formulas_code_and_marks():
    text = "Ni **shilingi** $1,200.50/siku; ng'ombe `x=1` \\times 3 https://a.b/c <b>sana</b>"
    assert words_of(text) == "Ni shilingi siku ng'ombe sana"
    # Vowel signs are marks, not letters, and belong to their word.
    assert words_of("సమాధానం 11") == "సమాధానం"


def test_what_cannot_be_judged_is_said(monkeypatch):
    assert why_not_judged("sw", "Latn") is None
    assert why_not_judged("zz", "Latn") == "py3langid does not know the language 'zz'"
    assert "its script 'Runr' is unknown; known are Arab" in str(why_not_judged("non", "Runr"))
    with pytest.raises(ValueError, match="'zz' cannot be judged: py3langid does not know"):
        is_in_language("a", "zz", "Latn")
    # Without the extra the scripts still decide where they can.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install 'layerswap[langid]'" in str(why_not_judged("sw", "Latn"))
    assert [why_not_judged(code, SCRIPTS[code]) for code in ("te", "bn", "ja")] == [None] * 3
    assert is_in_language("แอนเริ่มด้วยแอปเปิล 3 ผล คำตอบคือ 12", "th", "Thai")
