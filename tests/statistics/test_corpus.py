"""Corpus metrics as sums: equal to sacrebleu's own scores, whatever is drawn."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.statistics.corpus import CORPUS_METRICS, corpus_metric

WORDS = ["paka", "mbwa", "(ana)", "vikombe", "vitano", ",", ".", "5", "కుక్క", "犬が好き"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)


def _sacrebleu(metric, predictions, references):
    if metric == "bleu":
        return float(sacrebleu.corpus_bleu(predictions, [references], force=True).score)
    words = 2 if metric == "chrf++" else 0
    return float(sacrebleu.corpus_chrf(predictions, [references], word_order=words).score)


@pytest.mark.parametrize("name", CORPUS_METRICS)
@settings(max_examples=60)
@given(pairs=PAIRS, seed=st.integers(0, 9))
def test_sums_of_what_is_drawn_give_sacrebleus_score(name, pairs, seed):
    metric = corpus_metric(name)
    drawn = np.random.default_rng(seed).integers(0, len(pairs), size=len(pairs))
    counts = metric.counts([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    assert counts.shape[0] == len(pairs)
    chosen = [pairs[place] for place in drawn]
    expected = _sacrebleu(name, [pair[0] for pair in chosen], [pair[1] for pair in chosen]) / 100
    sums = counts[drawn].sum(axis=0).astype(np.float64)
    if name == "bleu":
        expected = min(expected, 1.0)
    assert float(metric.score(sums)) == pytest.approx(expected, abs=1e-12)


def test_the_signature_says_how_it_is_counted():
    said = sacrebleu.metrics.chrf.CHRF(char_order=4, word_order=1)
    said.corpus_score(["a b"], [["a c"]])
    metric = corpus_metric("chrf++", str(said.get_signature()))
    assert metric.counts(["a b"], ["a c"]).shape == (1, 3 * 5)
    intl = sacrebleu.metrics.bleu.BLEU(tokenize="intl")
    intl.corpus_score(["a b"], [["a c"]])
    assert corpus_metric("bleu", str(intl.get_signature())) is not None
    char = corpus_metric("bleu", "nrefs:1|case:mixed|eff:no|tok:char|smooth:exp|version:2.6.0")
    assert char.counts(["abc"], ["abd"])[0, 2:4].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("rouge", None),
        ("bleu", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"),
        ("bleu", "nrefs:1|case:mixed|eff:no|tok:13a|smooth:floor[0.10]|version:2.6.0"),
        ("chrf", "nrefs:1|case:mixed|eff:no|nc:6|nw:0|space:no|version:2.6.0"),
        ("ter", None),
    ],
)
def test_what_is_counted_otherwise_is_not_known(name, signature):
    assert corpus_metric(name, signature) is None


def test_a_perfect_corpus_scores_exactly_one():
    lines = ["paka ana vikombe vitano sasa", "mbwa ana vikombe sita leo"] * 20
    metric = corpus_metric("bleu")
    assert metric.score(metric.counts(lines, lines).sum(axis=0).astype(float)) == 1.0
