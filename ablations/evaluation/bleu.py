"""BLEU as sums over sentences. Knows sacrebleu; knows neither tasks nor models.

Corpus BLEU is a function of n-gram counts that add up over sentences, so a resample of the
corpus is a sum of rows: no text is tokenised twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ablations.evaluation.intervals import Counts

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
