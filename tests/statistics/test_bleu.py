import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.statistics.bleu import bleu_counts, bleu_of

WORDS = ["paka", "mbwa", "ana", "vikombe", "vitano", ",", ".", "sasa", "5"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=9)


@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=8))
def test_summed_counts_give_sacrebleus_corpus_score(pairs: list[tuple[list[str], ...]]) -> None:
    import sacrebleu

    predictions = [" ".join(pair[0]) for pair in pairs]
    references = [" ".join(pair[1]) for pair in pairs]
    expected = sacrebleu.corpus_bleu(predictions, [references], force=True).score / 100
    assert bleu_of(bleu_counts(predictions, references).sum(axis=0)) == pytest.approx(
        min(expected, 1.0), abs=1e-12
    )


def test_a_perfect_corpus_scores_exactly_one() -> None:
    lines = ["paka ana vikombe vitano sasa", "mbwa ana vikombe sita leo"] * 20
    assert bleu_of(bleu_counts(lines, lines).sum(axis=0)) == 1.0


def test_a_sentence_drawn_twice_counts_twice() -> None:
    counts = bleu_counts(["a b c d e", "x y"], ["a b c d f", "x y z"])
    twice = bleu_counts(["a b c d e", "a b c d e"], ["a b c d f", "a b c d f"])
    assert np.array_equal(2 * counts[0], twice.sum(axis=0))


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 predictions against 1 references"):
        bleu_counts(["a", "b"], ["a"])
