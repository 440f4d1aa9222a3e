"""Scores of translations, with their signatures. Knows sacrebleu; knows neither tasks nor models.

lm-eval's own `bleu` always tokenises with 13a, which takes a Japanese sentence for one word and
leaves the Indic full stop (।) on the word before it. So every target language has its tokenizer,
which the task file names and the signature repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Pair = tuple[str, str]
"""Reference, translation."""


def bleu_13a(pairs: Iterable[Pair]) -> float:
    """Return corpus BLEU in [0, 100] with sacrebleu's default tokenizer."""
    return corpus_score("bleu", pairs, tokenizer="13a")


def bleu_intl(pairs: Iterable[Pair]) -> float:
    """Return corpus BLEU in [0, 100], split at the punctuation of every script."""
    return corpus_score("bleu", pairs, tokenizer="intl")


def bleu_char(pairs: Iterable[Pair]) -> float:
    """Return corpus BLEU in [0, 100] over characters."""
    return corpus_score("bleu", pairs, tokenizer="char")


def chrf_plus_plus(pairs: Iterable[Pair]) -> float:
    """Return corpus chrF++ in [0, 100]."""
    return corpus_score("chrf++", pairs)


def corpus_score(metric: str, pairs: Iterable[Pair], *, tokenizer: str = "13a") -> float:
    """Return the score of a corpus, in [0, 100].

    Args:
        metric: ``bleu`` or ``chrf++``.
        pairs: reference and translation of every sentence.
        tokenizer: of BLEU, as sacrebleu names it (``flores200`` for spBLEU, which needs the
            network once); chrF++ has none.

    Raises:
        ValueError: for another metric, or no sentence.
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


def _scorer(metric: str, tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if metric == "bleu":
        return BLEU(tokenize=tokenizer)
    if metric == "chrf++":
        return CHRF(word_order=2)
    raise ValueError(f"no metric {metric!r}; there are bleu and chrf++")
