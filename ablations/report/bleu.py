"""Corpus BLEU of many resamples at once. Knows counts; `ablations.evaluation.bleu` knows texts."""

from __future__ import annotations

import numpy as np

from ablations.report.statistics import Array

_ORDER = 4


def bleu_of_sums(sums: Array) -> Array:
    """Return corpus BLEU in [0, 1] of summed `bleu_counts`, shape [..., 10] to [...].

    Equal to `ablations.evaluation.bleu.bleu_of` (sacrebleu's, with exponential smoothing), which
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
