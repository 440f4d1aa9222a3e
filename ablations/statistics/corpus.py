"""Metrics of a whole corpus (BLEU, chrF) as sums over sentences, scored by sacrebleu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ablations.statistics.means_and_p_values import Array

Pair = tuple[str, str]
"""Reference, translation."""

Statistic = Callable[[Array], Array]
"""Sums over items, shape [..., statistics], to scores, shape [...]."""

Counts = npt.NDArray[np.int64]
"""Additive statistics of every item, shape [items, statistics]."""

CORPUS_METRICS = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++"}
"""lm-eval's names of the metrics that have no value per sentence, and how they are written."""

_CHAR_ORDER, _WORD_ORDER = 6, {"chrf": 0, "chrf++": 2}
"""Longest n-grams of characters and of words, of which the metrics are named."""

_PLAIN = {
    "bleu": {"nrefs": "1", "case": "mixed", "smooth": "exp"},
    "chrf": {"nrefs": "1", "case": "mixed", "eff": "yes", "space": "no"},
}
"""Settings of a signature, where it names them, with which the scores here are the metric's."""


@dataclass(frozen=True)
class CorpusMetric:
    """One such metric with its settings."""

    scorer: Any
    """sacrebleu's own."""

    def counts(self, predictions: Sequence[str], references: Sequence[str]) -> Counts:
        """Return the additive statistics of as many sentences, shape [sentences, statistics].

        A sentence has one reference.
        """
        # No public name gives the counts; sacrebleu's own bootstrap takes them from here too.
        rows = self.scorer._extract_corpus_statistics(list(predictions), [list(references)])
        return np.array(rows, dtype=np.int64)

    def score(self, sums: Array) -> Array:
        """Return the scores of sums of counts, shape [..., statistics] to [...], in [0, 1]."""
        rows = sums.reshape(-1, sums.shape[-1]).astype(np.int64).tolist()
        # sacrebleu may pass 100 by rounding.
        scores = [min(self.scorer._compute_score_from_stats(row).score / 100, 1.0) for row in rows]
        return np.array(scores).reshape(sums.shape[:-1])


def corpus_metric(metric: str, signature: str | None = None) -> CorpusMetric | None:
    """Return a corpus metric, or None for one that is not known here.

    Args:
        metric: lm-eval's name.
        signature: sacrebleu's of the score; lm-eval's own settings for None.
    """
    family = "chrf" if metric in _WORD_ORDER else metric
    if family not in _PLAIN:
        return None
    settings = dict(part.split(":", 1) for part in (signature or "").split("|") if ":" in part)
    if any(settings.get(key, value) != value for key, value in _PLAIN[family].items()):
        return None
    if family == "bleu":
        return CorpusMetric(_scorer(metric, settings.get("tok", "13a")))
    char_order = int(settings.get("nc", _CHAR_ORDER))
    word_order = int(settings.get("nw", _WORD_ORDER[metric]))
    return CorpusMetric(_scorer(metric, char_order=char_order, word_order=word_order))


def pseudo_values(counts: Array, score: Statistic) -> Array:
    """Return the share of every item in a corpus score, shape [items]; their mean is the score.

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


def _scorer(
    metric: str,
    tokenizer: str = "13a",
    char_order: int = _CHAR_ORDER,
    word_order: int | None = None,
) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    if metric == "bleu":
        # Forced: it warns of text that looks tokenised, about which a reader can do nothing.
        return BLEU(tokenize=tokenizer, force=True)
    if word_order is None:
        word_order = _WORD_ORDER[metric]
    return CHRF(char_order=char_order, word_order=word_order)
