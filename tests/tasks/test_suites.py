"""lm-eval's suites in many languages: one way to name them, and names of them in words."""

import subprocess
import sys

import pytest

from ablations.requests.lm_eval_index import lm_eval_index
from ablations.tasks.catalog import LANGUAGE_NAMES, read_languages
from ablations.tasks.names import (
    language_name,
    language_script,
    task_language,
    task_name,
)
from ablations.tasks.suites import in_language, in_languages, read_suites
from layerswap_method.errors import InputError
from tools.task_languages import load_languages


def test_every_name_of_the_table_is_one_of_the_installed_lm_eval():
    names = lm_eval_index()
    suites = read_suites()
    assert len(suites) > 40
    for template, suite in suites.items():
        assert len(suite.codes) > 3, template
        for code in suite.codes:
            assert in_language(template, code) in names
            assert language_name(code) != code


def test_the_table_is_what_the_tool_writes():
    command = [sys.executable, "-m", "tools.task_suites", "--check"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("template", "code", "name"),
    [
        ("belebele_{lang}", "sw", "belebele_swh_Latn"),
        ("belebele_{lang}", "zh", "belebele_zho_Hans"),
        ("belebele_{lang}", "hi_Latn", "belebele_hin_Latn"),
        ("belebele_{lang}", "swh_Latn", "belebele_swh_Latn"),  # as the suite writes it
        ("include_base_44_{lang}", "it", "include_base_44_italian"),
        ("include_base_44_{lang}", "mk", "include_base_44_north_macedonian"),
        ("mmlu_prox_{lang}", "sw", "mmlu_prox_sw"),
        ("global_mmlu_full_{lang}", "fil", "global_mmlu_full_fil"),
        ("afrimgsm_cot_{lang}_prompt_1", "sw", "afrimgsm_cot_swa_prompt_1"),
        ("mmmlu_{lang}", "sw", "mmmlu_sw_ke"),
        ("xwinograd_{lang}", "ja", "xwinograd_jp"),
        ("story_{lang}", "it", "story_it"),  # a user's
        ("layerswap_mgsm_{lang}", "te", "layerswap_mgsm_te"),
    ],
)
def test_a_language_is_written_as_the_suite_writes_it(template, code, name):
    assert in_language(template, code) == name


def test_a_language_that_a_suite_lacks_is_named_with_those_that_it_has():
    with pytest.raises(InputError) as caught:
        in_languages(["xcopa_{lang}", "gsm8k", "mgsm_direct_{lang}"], ["sw", "te"])
    assert str(caught.value) == (
        "xcopa_{lang}: there is no 'te'; valid are et, eu, ht, id, it, qu, sw, ta, th, tr, vi, zh"
    )
    assert in_languages(["xcopa_{lang}", "gsm8k"], ["sw", "it"]) == (
        "xcopa_sw",
        "xcopa_it",
        "gsm8k",
    )


@pytest.mark.parametrize(
    ("task", "name", "language"),
    [
        ("belebele_swh_Latn", "Belebele, Swahili", "sw"),
        ("belebele_hin_Latn", "Belebele, Hindi (Latn)", "hi_Latn"),
        ("mmlu_prox_yo", "MMLU-ProX, Yoruba", "yo"),
        ("mmlu_prox_yo_biology", "MMLU-ProX, Yoruba, biology", "yo"),
        ("include_base_44_italian_stem", "INCLUDE, Italian, stem", "it"),
        ("belebele_eng_Latn", "Belebele, English", "en"),
        ("story_it", "story, Italian", "it"),
        ("translate_it_en", "translate, Italian to English", "en"),
        ("smol_math_it_4shot", "math, Italian, 4-shot", "it"),
        ("words_of_mine", "words of mine", "of"),
        ("list_is_sorted", "list is sorted", "is"),
        ("what_am_my_words", "what am my words", "my"),
        ("layerswap_polymath_top_it", "PolyMath-top, Italian", "it"),
        ("translate_sw_to_en", "translate, Swahili, to en", "en"),
        ("sw_qa", "sw qa", "sw"),
    ],
)
def test_a_task_is_named_in_words(task, name, language):
    assert (task_name(task), task_language(task, {})) == (name, language)
    assert task_language(task, {task: "te"}) == "te"  # its metadata win


def test_the_two_tables_of_languages_agree():
    table = read_languages(LANGUAGE_NAMES)
    for code, language in load_languages().items():
        assert table[code]["name"] == language.name
        assert language.script == language_script(code)
    assert (language_name("no"), language_name("xx")) == ("Norwegian", "xx")
