"""Write the table of lm-eval's suites in many languages, from the installed lm-eval's names.

python -m tools.task_suites           write `ablations/tasks/suites.json` anew
python -m tools.task_suites --check   exit with 1 if it differs; write nothing
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import click

from ablations.requests.lm_eval_index import lm_eval_index
from ablations.tasks.catalog import LANGUAGE_NAMES, read_languages
from ablations.tasks.suites import PLACEHOLDER, SUITES_FILE, Suite
from layerswap_method.command_line import shown_errors
from tools.write_or_check import write_or_check

_PROMPTS = range(1, 6)
"""Numbers of AfroBench's prompts, each of which is a task."""

SUITES = {
    "mmlu_prox_{lang}": "MMLU-ProX",
    "mmlu_prox_lite_{lang}": "MMLU-ProX Lite",
    "global_mmlu_{lang}": "Global-MMLU Lite",
    "global_mmlu_full_{lang}": "Global-MMLU",
    "mmmlu_{lang}": "MMMLU",
    "m_mmlu_{lang}": "MMLU (Okapi)",
    "include_base_44_{lang}": "INCLUDE",
    "include_base_44_{lang}_few_shot_og": "INCLUDE, few-shot",
    "include_base_44_{lang}_few_shot_en": "INCLUDE, few-shot in English",
    "belebele_{lang}": "Belebele",
    "global_piqa_nonparallel_cloze_{lang}": "Global PIQA, cloze",
    "global_piqa_nonparallel_generation_{lang}": "Global PIQA, generation",
    "mgsm_direct_{lang}": "MGSM, direct",
    "mgsm_native_cot_{lang}": "MGSM, native chain of thought",
    "mgsm_en_cot_{lang}": "MGSM, English chain of thought",
    **{f"afrimgsm_{{lang}}_prompt_{n}": f"AfriMGSM, prompt {n}" for n in _PROMPTS},
    **{f"afrimgsm_cot_{{lang}}_prompt_{n}": f"AfriMGSM CoT, prompt {n}" for n in _PROMPTS},
    **{f"afrimmlu_direct_{{lang}}_prompt_{n}": f"AfriMMLU, prompt {n}" for n in _PROMPTS},
    **{f"afrixnli_{{lang}}_prompt_{n}": f"AfriXNLI, prompt {n}" for n in _PROMPTS},
    "arc_{lang}": "ARC (Okapi)",
    "hellaswag_{lang}": "HellaSwag (Okapi)",
    "truthfulqa_{lang}_mc1": "TruthfulQA MC1 (Okapi)",
    "truthfulqa_{lang}_mc2": "TruthfulQA MC2 (Okapi)",
    "xcopa_{lang}": "XCOPA",
    "xnli_{lang}": "XNLI",
    "xquad_{lang}": "XQuAD",
    "xstorycloze_{lang}": "XStoryCloze",
    "xwinograd_{lang}": "XWinograd",
    "paws_{lang}": "PAWS-X",
    "tydiqa_goldp_{lang}": "TyDi QA GoldP",
    "lambada_openai_mt_{lang}": "LAMBADA (translated)",
    "mlqa_{lang}_{lang}": "MLQA",
}
"""Name with ``{lang}`` -> title."""

_OTHER_WORDS = {
    "chinese": "zh",
    "filipino": "fil",
    "jp": "ja",  # XWinograd
    "north macedonian": "mk",
}
"""A suite's word for a language -> its code here."""


def codes_of(name: str, tasks: list[str]) -> dict[str, str]:
    """Return code of a language -> a suite's code, of all `tasks` that are `name` in one."""
    start, *_, end = name.split(PLACEHOLDER)
    pattern = re.compile(
        re.escape(start)
        + r"([A-Za-z]+(?:_[A-Za-z]+)?)"
        + (rf"{re.escape(name.split(PLACEHOLDER)[1])}\1" if name.count(PLACEHOLDER) > 1 else "")
        + re.escape(end)
    )
    matches = [match[1] for task in tasks if (match := pattern.fullmatch(task))]
    pairs = sorted((code, written) for written in matches for code in _code(written, name))
    # None of several countries' texts in one language is the language's.
    codes = [code for code, _ in pairs]
    return {code: written for code, written in pairs if codes.count(code) == 1}


def _code(written: str, name: str) -> Iterator[str]:
    """Yield the code here of the word of the suite `name` for a language; nothing for others."""
    table = read_languages(LANGUAGE_NAMES)
    by_name = {entry["name"].lower(): code for code, entry in table.items()}
    by_iso = {iso: code for code, entry in table.items() for iso in entry.get("iso_639_3", ())}
    lowered = written.lower()
    words = {**by_name, **by_iso, **{code: code for code in table}, **_OTHER_WORDS}
    if (code := words.get(lowered.replace("_", " "))) is not None:
        yield code
        return
    language, _, end = lowered.partition("_")
    if not end or (code := words.get(language)) is None:
        return
    script = end.title()
    if script == table[code]["script"] or (script, code) == ("Hang", "ko"):
        yield code
    elif script in {entry["script"] for entry in table.values()}:
        yield f"{code}_{script}"
    elif name == "mmmlu_{lang}":  # `end` is a country
        yield code


def suites_text(suites: Mapping[str, Suite]) -> str:
    """Return the content of the file of suites."""
    content = {name: suite._asdict() for name, suite in suites.items()}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the file differs.")
@shown_errors()
def main(check: bool) -> None:
    """Write the table of suites."""
    tasks = sorted(lm_eval_index())
    suites = {name: Suite(title, codes_of(name, tasks)) for name, title in SUITES.items()}
    write_or_check(SUITES_FILE, suites_text(suites), "task_suites", check=check)
    click.echo(f"{SUITES_FILE}: as lm-eval's tasks")


if __name__ == "__main__":
    main()
