"""Metrics of a whole corpus (BLEU, chrF) as sums over sentences. Knows sacrebleu; no task.

Each is a function of counts that add up over sentences, so that a corpus drawn again is a sum of
rows: no text is looked at twice, and two models can be compared on the same draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ablations.statistics.intervals import Array, Counts, Statistic

Pair = tuple[str, str]
"""Reference, translation."""

CORPUS_METRICS = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++"}
"""lm-eval's names of the metrics that have no value per sentence, and how they are written."""

_CHAR_ORDER = 6
_WORD_ORDER = {"chrf": 0, "chrf++": 2}
_PLAIN = {
    "bleu": {"nrefs": "1", "case": "mixed", "smooth": "exp"},
    "chrf": {"nrefs": "1", "case": "mixed", "eff": "yes", "space": "no"},
}
"""What a signature has to say, if it says anything, for the sums here to be the metric's."""


@dataclass(frozen=True)
class CorpusMetric:
    """One such metric with its settings."""

    scorer: Callable[[], Any]
    """Makes sacrebleu's own."""

    score: Callable[[Array], Array]
    """Sums of counts, shape [..., statistics], to scores in [0, 1], shape [...]."""

    def counts(self, predictions: Sequence[str], references: Sequence[str]) -> Counts:
        """Return the additive statistics of as many sentences, shape [sentences, statistics].

        A sentence has one reference. Columns of BLEU: length predicted, length of the reference,
        matches of the 1- to 4-grams, 1- to 4-grams predicted. Of chrF, for every order, characters
        first: n-grams predicted, n-grams of the reference, matches.
        """
        # No public name gives the counts; sacrebleu's own bootstrap takes them from here too.
        rows = self.scorer()._extract_corpus_statistics(list(predictions), [list(references)])
        return np.array(rows, dtype=np.int64)


def corpus_metric(metric: str, signature: str | None = None) -> CorpusMetric | None:
    """Return a corpus metric, or None for one whose sums are not known here.

    Args:
        metric: lm-eval's name.
        signature: sacrebleu's of the score; lm-eval's own settings for None.
    """
    family = "chrf" if metric in _WORD_ORDER else metric
    if family not in _PLAIN or not _is_plain(family, signature):
        return None
    if family == "bleu":
        tokenizer = _said(signature, "tok") or "13a"  # sacrebleu's default, and so lm-eval's
        return CorpusMetric(partial(_scorer, "bleu", tokenizer), bleu_of_sums)
    chars = int(_said(signature, "nc") or _CHAR_ORDER)
    words = int(_said(signature, "nw") or _WORD_ORDER[metric])
    scorer = partial(_scorer, metric, char_order=chars, word_order=words)
    return CorpusMetric(scorer, chrf_of_sums)


def pseudo_values(counts: Array, score: Statistic) -> Array:
    """Return what every item adds to a corpus score, shape [items]; their mean is the score.

    The jackknife's pseudo-values, moved to the mean of the score: n s - (n-1) s_i, with s_i the
    score without item i. Source: Efron and Tibshirani 1993, chapter 11.

    Args:
        counts: additive statistics, shape [items, statistics].
        score: sums to a score.
    """
    sums = counts.sum(axis=0, keepdims=True)
    whole = score(sums)
    if len(counts) < 2:
        return whole
    without = -(len(counts) - 1) * score(sums - counts)
    return np.asarray(without - without.mean() + whole)


def bleu_of_sums(sums: Array) -> Array:
    """Return corpus BLEU in [0, 1] of summed counts, shape [..., 10] to [...].

    Equal to ``sacrebleu.corpus_bleu(...).score / 100`` (exponential smoothing), but never above 1,
    which sacrebleu passes by rounding. sacrebleu takes one row at a time; a bootstrap over pairs of
    experts needs tens of thousands.
    """
    system, reference = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2:6], sums[..., 6:]
    missed = (matches == 0) & (totals > 0)
    # The first order without a match counts as half a match, the next as a quarter, and so on.
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed / totals).mean(axis=-1)
        penalty = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        scores = penalty * np.exp(logs)
    empty = (totals == 0).any(axis=-1) | ~(matches > 0).any(axis=-1) | (system == 0)
    return np.asarray(np.where(empty, 0.0, np.minimum(scores, 1.0)), dtype=np.float64)


def chrf_of_sums(sums: Array) -> Array:
    """Return corpus chrF in [0, 1] of summed counts, shape [..., 3 orders] to [...].

    Precision P and recall R are averaged over the orders that both texts have::

        chrF = (1 + β²) P R / (β² P + R),   β = 2

    Source: Popović 2015 (WMT) and 2017 for the words; equal to sacrebleu's corpus score.
    """
    counts = sums.reshape(*sums.shape[:-1], -1, 3)
    predicted, reference, matches = (counts[..., column] for column in range(3))
    known = (predicted > 0) & (reference > 0)
    orders = known.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = (
            np.where(known, matches / each, 0.0).sum(axis=-1) / orders
            for each in (predicted, reference)
        )
        weight = 2**2
        scores = (1 + weight) * precision * recall / (weight * precision + recall)
    return np.asarray(np.where(np.isfinite(scores), scores, 0.0), dtype=np.float64)


def _said(signature: str | None, key: str) -> str | None:
    found = re.search(rf"(?:^|\|){key}:([^|]*)", signature or "")
    return None if found is None else found[1]


def _is_plain(family: str, signature: str | None) -> bool:
    return all(_said(signature, key) in (None, value) for key, value in _PLAIN[family].items())


def corpus_score(metric: str, pairs: Iterable[Pair], *, tokenizer: str = "13a") -> float:
    """Return the score of a corpus, in [0, 100].

    Args:
        metric: ``bleu`` or ``chrf++``.
        pairs: reference and translation of every sentence.
        tokenizer: of BLEU, as sacrebleu names it (``flores200`` for spBLEU, which needs the
            network once); chrF++ has none.

    Raises:
        ValueError: for no sentence.
    """
    references, predictions = zip(*pairs, strict=True)
    scorer = _scorer(metric, tokenizer)
    return float(scorer.corpus_score(list(predictions), [list(references)]).score)


def signatures(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return metric → sacrebleu's signature of a task with this metadata; {} where none is used.

    The signature says all that changes a score: references, case, tokenizer, smoothing, version.
    """
    tokenizer = metadata.get("bleu_tokenizer")
    if tokenizer is None:
        return {}
    return {metric: signature(metric, tokenizer=tokenizer) for metric in ("bleu", "chrf++")}


def signature(metric: str, *, tokenizer: str = "13a") -> str:
    """Return sacrebleu's signature of `metric` as `corpus_score` computes it."""
    scorer = _scorer(metric, tokenizer)
    # The number of references enters the signature with the first score.
    scorer.corpus_score(["a"], [["a"]])
    return str(scorer.get_signature())


def _scorer(metric: str, tokenizer: str = "13a", **orders: int) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    if metric == "bleu":
        # Forced: it warns of text that looks tokenised, about which a reader can do nothing.
        return BLEU(tokenize=tokenizer, force=True)
    return CHRF(**{"word_order": _WORD_ORDER[metric], **orders})
