"""BLEU as sums over sentences. Knows sacrebleu; knows neither tasks nor models.

Corpus BLEU is a function of n-gram counts that add up over sentences, so a resample of the
corpus is a sum of rows: no text is tokenised twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ablations.statistics.intervals import Counts

DEFAULT_TOKENIZER = "13a"
"""sacrebleu's, and so that of lm-eval's own `bleu`."""

_ORDER = 4


def tokenizer_of(signature: str | None) -> str:
    """Return the tokenizer that a BLEU signature of sacrebleu names; its default for None."""
    named = re.search(r"(?:^|\|)tok:([^|]+)", signature or "")
    return DEFAULT_TOKENIZER if named is None else named[1]


def bleu_counts(
    predictions: Sequence[str], references: Sequence[str], tokenizer: str = DEFAULT_TOKENIZER
) -> Counts:
    """Return the additive statistics of BLEU, shape [sentences, 10].

    Columns: matches of the 1- to 4-grams, 1- to 4-grams predicted, length predicted, length of
    the reference. Case is kept, and a sentence has one reference, as in lm-eval.

    Args:
        predictions: a translation per sentence.
        references: its reference.
        tokenizer: as sacrebleu names it.

    Raises:
        ValueError: when the two differ in length.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions against {len(references)} references")
    # effective_order changes how a sentence is scored, not what is counted; without it sacrebleu
    # warns that sentence scores are unreliable, and those are not used here.
    metric = BLEU(effective_order=True, tokenize=tokenizer)
    rows = []
    for prediction, reference in zip(predictions, references, strict=True):
        counted = metric.sentence_score(prediction, [reference])
        rows.append([*counted.counts, *counted.totals, counted.sys_len, counted.ref_len])
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2 * _ORDER + 2)


def bleu_of(sums: npt.NDArray[np.float64]) -> float:
    """Return corpus BLEU in [0, 1] from summed `bleu_counts`, shape [10].

    Equal to ``sacrebleu.corpus_bleu(...).score / 100`` (exponential smoothing), but never above
    1, which sacrebleu passes by rounding.
    """
    from sacrebleu.metrics.bleu import BLEU

    whole = [round(value) for value in sums]
    score = BLEU.compute_bleu(
        correct=whole[:_ORDER],
        total=whole[_ORDER : 2 * _ORDER],
        sys_len=whole[-2],
        ref_len=whole[-1],
        smooth_method="exp",
    ).score
    return min(float(score) / 100, 1.0)


def bleu_of_sums(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return corpus BLEU in [0, 1] of summed `bleu_counts`, shape [..., 10] to [...].

    Equal to `bleu_of` (sacrebleu's, with exponential smoothing), which
    takes one row at a time: a bootstrap over pairs of experts needs tens of thousands.
    """
    matches, totals = sums[..., :_ORDER], sums[..., _ORDER : 2 * _ORDER]
    system, reference = sums[..., -2], sums[..., -1]
    missed = (matches == 0) & (totals > 0)
    # The first order without a match counts as half a match, the next as a quarter, and so on.
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed / totals).mean(axis=-1)
        penalty = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        scores = penalty * np.exp(logs)
    empty = (totals == 0).any(axis=-1) | ~(matches > 0).any(axis=-1) | (system == 0)
    return np.asarray(np.where(empty, 0.0, np.minimum(scores, 1.0)), dtype=np.float64)
