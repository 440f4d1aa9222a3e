"""BLEU and chrF++ of translations: sacrebleu's values, tokenizers and signatures."""

import pytest
import sacrebleu

from ablations.statistics.corpus import corpus_score, signature
from ablations.tasks.translation import bleu_13a, bleu_char, bleu_intl, chrf_plus_plus
from tests.standins.scripted import DATA, read_jsonl
from tools.task_languages import load_languages

BLEU = {"13a": bleu_13a, "intl": bleu_intl, "char": bleu_char}


def _pairs(code: str) -> list[tuple[str, str]]:
    """Return references with translations that are partly right."""
    texts = [row["text"] for row in read_jsonl(DATA / "flores" / f"{code}_devtest.jsonl")]
    return [(text, text[: len(text) * 2 // 3] + " ?") for text in texts]


@pytest.mark.parametrize("code", ["sw", "te", "bn", "ja", "en"])
def test_scores_and_signatures_are_sacrebleus_own(code: str) -> None:
    tokenizer = load_languages()[code].bleu
    pairs = _pairs(code)
    references, predictions = [[reference for reference, _ in pairs]], [said for _, said in pairs]
    theirs = sacrebleu.BLEU(tokenize=tokenizer)
    expected = theirs.corpus_score(predictions, references).score
    assert 0 < expected < 100
    assert BLEU[tokenizer](pairs) == corpus_score("bleu", pairs, tokenizer=tokenizer) == expected
    version = sacrebleu.__version__
    assert signature("bleu", tokenizer=tokenizer) == str(theirs.get_signature())
    assert f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}|smooth:exp|version:{version}" == signature(
        "bleu", tokenizer=tokenizer
    )
    chrf = sacrebleu.CHRF(word_order=2)
    assert chrf_plus_plus(pairs) == chrf.corpus_score(predictions, references).score
    assert signature("chrf++") == str(chrf.get_signature())
    assert "nw:2" in signature("chrf++")


def test_tokenizers_fit_their_scripts() -> None:
    """Why lm-eval's 13a will not do: a sentence that lacks only its full stop."""
    bengali, japanese = "সে বাড়ি গেল আজ।", "橋は来週開通すると彼女は言いました。"
    # Without its own token, the danda makes another word of the word before it.
    assert bleu_intl([(bengali, bengali[:-1])]) > bleu_13a([(bengali, bengali[:-1])])
    # One word against another word: nothing is right.
    assert bleu_13a([(japanese, japanese[:-1])]) == 0
    assert bleu_char([(japanese, japanese[:-1])]) > 90
