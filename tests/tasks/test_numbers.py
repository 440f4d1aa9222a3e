"""Numbers in answers, and BLEU and chrF++ of translations."""

import re
import subprocess
import sys
import time
import unicodedata
from decimal import Decimal

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from ablations.statistics.corpus import corpus_score, signature
from ablations.tasks.numbers import (
    _ONCE,
    LastNumber,
    NumberAfterPhrase,
    NumberAfterPrefix,
    exact_match,
    number_pattern,
    read_number,
)
from ablations.tasks.translation import bleu_13a, bleu_char, bleu_intl, chrf_plus_plus
from tests.standins.scripted import DATA, read_jsonl
from tools.task_languages import load_languages

LANGUAGES = load_languages()
SCRIPTS = [
    str.maketrans("0123456789,.-", "０１２３４５６７８９，．－"),
    str.maketrans("0123456789", "০১২৩৪৫৬৭৮৯"),
    str.maketrans("0123456789", "౦౧౨౩౪౫౬౭౮౯"),
    {},
]
SAME = [
    "1080",
    "1,080",
    "1080.0",
    "1,080.00",
    " 1080",
    "1080.",
    "1080。",
    "1080।",
    "$1,080",
    "¥1080",
    "₹1,080",
    "৳1080",
    "1080%",
    "(1080)",
    "**1080**",
    "01080",
    "１０８０",
    "１，０８０",
    "১০৮০",
    "১,০৮০",
    "౧౦౮౦",
    "౧,౦౮౦",
    "1\u00a0080",
    "1\u202f080",
    "١٬٠٨٠",
    "1{,}080",
    r"1\,080",
]
OTHER = [
    ("35", "3.5"),
    ("35", "-35"),
    ("35", "3 5"),
    ("35", "350"),
    ("35", "35.1"),
    ("35", "3,5"),
    ("35", ""),
    ("35", "[invalid]"),
    ("35", "thirty-five"),
    ("35", "35 or 36"),
    ("5", "-5"),
    ("1080", "1.080"),
    ("1080", "1,08"),
    ("7", "7万"),
    ("0", ""),
    ("35", "३ ५"),
]


@pytest.mark.parametrize(
    ("expected", "answer", "score"),
    [
        *((expected, answer, 1) for answer in SAME for expected in ("1,080", "1080")),
        *((expected, answer, 0) for expected, answer in OTHER),
    ],
)
def test_numbers_are_compared_and_not_their_text(expected, answer, score):
    assert exact_match(references=[expected], predictions=[answer]) == score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,00,000", 100_000),
        ("12,34,567.5", "1234567.5"),
        (".5", "0.5"),
        ("5.", 5),
        *((text, -5) for text in ("-5", "−5", "－５", "-$5", "$-5", "-5.0", "-৫")),
    ],
)
def test_indian_groups_decimals_and_all_minus_signs_are_read(text, number):
    assert read_number(text) == Decimal(number)


def test_a_gold_answer_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="the gold answer 'many' is not a number"):
        exact_match(references=["many"], predictions=["1"])


@given(st.integers(-(10**9), 10**9), st.sampled_from(SCRIPTS))
def test_every_script_and_grouping_reads_back(number, script):
    for text in (f"{number}", f"{number:,}", f"{number}.0", f"{number:,}.00"):
        assert read_number(text.translate(script)) == number
    assert read_number(f"{number + 1}".translate(script)) != number


def last_of(text, **digits):
    """Return the last number of a text, in a language with such digits."""
    ((number,),) = LastNumber(**digits).apply([[text]], [{}])
    return number


def digits_of(code):
    return LANGUAGES[code].digits.model_dump(exclude_defaults=True)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("74-35=39個のチョコレートが残っている。答えは39個。", "39"),
        ("5 + 6 = 11. The answer is 11.", "11"),
        ("She pays $1,080.50 in total.", "1080.50"),
        ("35-2", "2"),
        ("x-5", "5"),
        ("from 10 to -5", "-5"),
        ("答えは-5です", "-5"),
        ("উত্তর হল ১,০৮০।", "1080"),
        ("సమాధానం 39.చాక్లెట్‌లు", "39"),
        ("on pages 10,20", "20"),
        ("... so ...10", "10"),
        ("18%", "18"),
        ("1,0800", "0800"),
        ("1234,567", "567"),
        ("5 000 and 7", "7"),
        ("of 7 there are 5 000", "000"),  # in English a space groups no digits
        ("so .5", "0.5"),
        ("none", "[invalid]"),
    ],
)
def test_the_last_number_of_a_text_is_found(text, last):
    assert last_of(text) == last


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=5))
def test_numbers_in_prose_are_found_one_by_one(numbers):
    text = " and ".join(f"{number:,} mangoes" for number in numbers)
    assert [read_number(n[0]) for n in re.finditer(number_pattern(), text)] == numbers


@pytest.mark.parametrize(
    ("code", "numbers"),
    {
        "fr": ["70 000.", "70\u00a0000", "70\u202f000", "70'000", "70 000,00 €", "70,000", "70000"],
        "ru": ["2 125.", "2\u00a0125 руб.", "2125,0"],
        "es": ["70 000 euros", "70.000", "70.000,00", "70,000.00"],
        "de": ["1.234.567", "1 234 567", "1’234’567", "1,234,567", "1.234.567,00 Euro"],
        "pt": ["12.500", "12 500 reais"],
        "cs": ["12 500", "12 500,50"],
        "xh": ["12 500", "12,500"],
        "ar": ["١٬٠٨٠", "١٬٠٨٠٫٠", "1,080"],
        "ur": ["۱٬۰۸۰", "۱٬۰۰٬۰۰۰"],
        "en": [r"$\boxed{9{,}500}$.", r"9\,500", "9\u2009500", "9,500"],
        "hu": ["3,5", "0,500", "-0,5"],
        "it": ["0.125", "3.5", "3.1416", "3,125.5"],
    }.items(),
)
def test_digits_are_grouped_as_the_language_has_it(code, numbers):
    read = [last_of(f"x: {number}", **digits_of(code)) for number in numbers]
    expected = {
        "fr": [70_000] * 7,
        "ru": [2125] * 3,
        "es": [70_000] * 4,
        "de": [1_234_567] * 5,
        "pt": [12_500] * 2,
        "cs": [12_500, "12500.5"],
        "xh": [12_500] * 2,
        "ar": [1080] * 3,
        "ur": [1080, 100_000],
        "en": [9500] * 4,
        "hu": ["3.5", "0.5", "-0.5"],
        "it": ["0.125", "3.5", "3.1416", "3125.5"],
    }
    assert [*map(Decimal, read)] == [*map(Decimal, expected[code])]


def test_what_groups_no_digits_separates_numbers():
    french, german = digits_of("fr"), digits_of("de")
    numbers = number_pattern(tuple(french["groups"]), french["decimal"])
    for text, parts in {
        "5 000 et 7": ["5 000", "7"],
        "12 34 567": ["12", "34 567"],
        "1234 567": ["1234", "567"],
        "1 0800": ["1", "0800"],
        "0 500": ["0", "500"],
        "3, 500": ["3", "500"],
        "28.11.2026": ["28.11", "2026"],
        "10-20 000": ["10", "20 000"],
    }.items():
        assert [number[0] for number in re.finditer(numbers, text)] == parts, text
    assert last_of("am 28.11.2026", **german) == "2026"
    # Of two signs one is decimal.
    assert last_of("1.234,567", **german) == "1234.567"
    assert last_of("1,234.567", **german) == "1234.567"


ENDLESS = {
    "11,": 1,
    "1,11,11.": 1,
    "7": 1,
    ",": 0,
    " ": 0,
    "-": 0,
    "...5,11": 0,
    "so 1,11 is ": 0,
    "1 111 ": 1,
    "1.111.": 1,
    "11 11 ": 1,
    "$ ": 0,
    "\\boxed{": 0,
    "**": 0,
}
"""What an answer may consist of -> whether a number follows the phrase before it."""


@pytest.mark.parametrize("digits", [{}, {"groups": ("point", "space"), "decimal": "comma"}])
def test_work_on_an_endless_answer_grows_as_its_length(digits):
    """As the square of its length it would be hours of CPU time; what is allowed is a minute."""
    script = f"""
import resource
from ablations.tasks.numbers import LastNumber, NumberAfterPhrase, NumberAfterPrefix, read_number
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for piece, follows in {ENDLESS}.items():
    text = piece * 200_000
    assert LastNumber(**{digits}).apply([[text + " and 5"]], [{{}}]) == [["5"]]
    for words, found in [("Jibu ni ", follows), ("Jibu ni" + piece, None)]:
        ((answer,),) = NumberAfterPhrase(["Jibu ni"], **{digits}).apply([[words + text]], [{{}}])
        assert found is None or (answer != "[invalid]") == found, piece
    item = {{"answer_prefix": "Jibu"}}
    ((answer,),) = NumberAfterPrefix(**{digits}).apply([["Jibu: " + text]], [item])
    assert (answer != "[invalid]") == follows, piece
    assert (read_number(text) is None) == (piece != "7")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@given(st.text("12,.-$ a，．٬", max_size=24), st.sampled_from(["point", "comma"]))
def test_what_saves_time_changes_no_number(text, decimal):
    fast = number_pattern((), decimal)
    slow = fast.replace(_ONCE, "")
    assert slow != fast
    numbers = [[number[0] for number in re.finditer(each, text)] for each in (fast, slow)]
    assert numbers[0] == numbers[1]


SOLUTIONS = {
    "en": ("Five and six make 11. The answer is {}.", "so the answer is {} mangoes, not 7."),
    "sw": ("5 + 6 = 11. Jibu ni {}.", "Kwa hivyo, jibu ni {}. Swali lilikuwa rahisi."),
    "te": ("5+6=11. సమాధానం {}.", "5+6=11 కాబట్టి సమాధానం {}.చాక్లెట్‌లు"),
    "bn": ("5 + 6 = 11। উত্তর হল {}।", "তাই উত্তর হল {}টি আম।"),
    "ja": ("5+6=11。答えは{}です。", "だから、答えは{}個。"),
}


def after_phrase(code, *texts):
    words, options = LANGUAGES[code].mgsm, digits_of(code)
    step = NumberAfterPhrase(words.phrases, words.before_phrase, **options)
    return [number for (number,) in step.apply([[text] for text in texts], [{}] * len(texts))]


@pytest.mark.parametrize("code", SOLUTIONS)
def test_strict_extraction_reads_a_number_right_after_the_phrase(code):
    (phrase,) = LANGUAGES[code].mgsm.phrases
    for number, plain in {"1,080": "1080", "-3.5": "-3.5", "$8": "8", "১১": "11"}.items():
        texts = [solution.format(number) for solution in SOLUTIONS[code]]
        assert after_phrase(code, *texts) == [plain, plain]
    for other, solutions in SOLUTIONS.items():
        expected = "11" if other == code else "[invalid]"
        assert after_phrase(code, solutions[0].format(11)) == [expected]
    # A model may go on after its answer.
    assert after_phrase(code, f"{phrase} 11. {phrase} 12.") == ["11"]
    # Marks of bold text and of formulas, a box and a colon say nothing else.
    marks = (" **11**", ": 11", "：11", ":\n\n11", " $11$", r" \(11\)", r": $\boxed{11}$", " `11`")
    boxes = (r" \boxed{\text{11}}", r" **\$11**", " __11__", r"**: $\mathbf{11}$")
    assert {*after_phrase(code, *(phrase + rest for rest in marks + boxes))} == {"11"}
    # Other words and signs do.
    for rest in ("", " many", " about 11", " = 11", " x = 11", ": x = 11", " (or 11)", "; 11"):
        assert after_phrase(code, phrase + rest) == ["[invalid]"]


def test_no_answer_follows_the_words_before_a_solution():
    """Telugu's phrase is the end of "step-by-step answer:", which a model may repeat."""
    header = LANGUAGES["te"].mgsm.answer
    for begin in (header, f"**{header}**", f"{header}\n\n"):
        assert after_phrase("te", f"{begin} 5 + 6 = 11. సమాధానం: 11") == ["11"]
    assert after_phrase("te", f"{header} 5") == ["[invalid]"]


@pytest.mark.parametrize("code", [code for code, entry in LANGUAGES.items() if entry.mgsm])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_are_found_in_any_form_of_unicode(code, form):
    words = LANGUAGES[code].mgsm.phrases[0]
    spaced = words.replace(" ", "\u00a0\n")
    for text in (words, spaced, "\u200f".join(words)):
        assert after_phrase(code, unicodedata.normalize(form, f"{text} 18.")) == ["18"]


@pytest.mark.parametrize("code", ["sw", "te", "bn", "ja", "en"])
def test_scores_of_translations_and_their_signatures_are_sacrebleus_own(code):
    texts = [row["text"] for row in read_jsonl(DATA / "flores" / f"{code}_devtest.jsonl")]
    pairs = [(text, text[: len(text) * 2 // 3] + " ?") for text in texts]  # partly right
    references, predictions = [texts], [said for _, said in pairs]
    tokenizer = LANGUAGES[code].bleu
    theirs = sacrebleu.BLEU(tokenize=tokenizer)
    expected = theirs.corpus_score(predictions, references).score
    bleu = {"13a": bleu_13a, "intl": bleu_intl, "char": bleu_char}[tokenizer]
    assert bleu(pairs) == corpus_score("bleu", pairs, tokenizer=tokenizer) == expected
    assert 0 < expected < 100
    assert signature("bleu", tokenizer=tokenizer) == str(theirs.get_signature())
    assert f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}|smooth:exp" in str(theirs.get_signature())
    chrf = sacrebleu.CHRF(word_order=2)
    assert chrf_plus_plus(pairs) == chrf.corpus_score(predictions, references).score
    assert signature("chrf++") == str(chrf.get_signature())


def after_prefix(prefix, *texts, **digits):
    step, item = NumberAfterPrefix(**digits), {"answer_prefix": prefix}
    return step.apply([texts], [item])[0]


@pytest.mark.parametrize(
    ("prefix", "text", "number"),
    [
        ("Jibu", "3 + 4 = 7\nJibu: 7", "7"),
        ("Jibu:", "3 + 4 = 7\n**jibu:** $1,080.", "1080"),
        ("答案", "答案：3。不对，答案： 7", "7"),
        ("答え", "答え\n：７", "7"),
        ("Rép.", "Rép. : 7 pommes", "7"),
        ("Rép.", "Répx: 7", "[invalid]"),
        ("Answer", "Answer 7", "[invalid]"),
        ("Answer", "Answer: seven or 7", "[invalid]"),
        ("Answer", r"Answer: $\boxed{18}$", "18"),
        ("Answer", r"**Answer:** \(\boxed{\$9{,}500}\)", "9500"),
        ("الجواب", "الجواب\u200f: ١٬٠٨٠", "1080"),
        ("መልስ:", "መልስ፦ 18", "18"),
        ("መልስ፦", "መልስ: 18", "18"),
        ("ចម្លើយ", "ចម្លើយ៖ ១៨", "18"),
        ("Answer", "", "[invalid]"),
    ],
)
def test_the_number_after_the_words_of_the_item(prefix, text, number):
    assert after_prefix(prefix, text, text) == [number, number]
    # The words are those of the item, not of its neighbour.
    items = [{"answer_prefix": "Other"}, {"answer_prefix": prefix}]
    assert NumberAfterPrefix().apply([["Other: 1"], [text]], items) == [["1"], [number]]


@pytest.mark.parametrize("prefix", ["Trả lời", "Réponse", "답변", "उत्तर"])
@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_the_words_of_an_item_are_found_in_any_form_of_unicode(prefix, forms):
    first, second = (unicodedata.normalize(form, prefix) for form in forms)
    assert after_prefix(first, f"{second}: 18") == ["18"]


@pytest.mark.parametrize(
    "text", ["Answer" * 200_000, "Answer:" * 200_000, "Answer *" + "* " * 500_000]
)
def test_a_megabyte_of_prefixes_is_read_in_a_moment(text):
    start = time.monotonic()
    assert after_prefix("Answer", text) == ["[invalid]"]
    assert time.monotonic() - start < 5
