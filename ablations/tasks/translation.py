"""Scores of translations, with their signatures, by sacrebleu.

lm-eval's own `bleu` always tokenises with 13a, which takes a Japanese sentence for one word and
leaves the Indic full stop (।) on the word before it. So every target language has its tokenizer,
which the task file names and the signature repeats.
"""

from __future__ import annotations

from collections.abc import Iterable

from ablations.statistics.corpus import Pair, corpus_score


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
