"""Models that were evaluated in different ways are not compared."""

import pytest

from ablations.report.compare_models import compare_models
from ablations.runs.records import write_run_file
from ablations.runs.run import load_run
from layerswap_method.errors import InputError
from tests.report.runs import edit_record, write_single


def test_other_prompts_and_other_protocols_are_refused(tmp_path):
    base = write_single(tmp_path / "base", "base")
    for old, new, why in (
        ('doc_hash":"', 'doc_hash":"new', "have no item of pocket_math_sw in common"),
        (
            'prompt_hash":"p3"',
            'prompt_hash":"other"',
            r"different prompts of pocket_math_sw.*item 3",
        ),
    ):
        soup = write_single(tmp_path / why[:9], "soup")
        for file in soup.glob("records/*.jsonl"):
            edit_record(file, lambda text, old=old, new=new: text.replace(old, new))
        with pytest.raises(InputError, match=why):
            compare_models([str(base), str(soup)])
    run = load_run(soup)
    options = run.study.evaluate.options.model_copy(update={"dtype": "float16"})
    evaluate = run.study.evaluate.model_copy(update={"options": options})
    study = run.study.model_copy(update={"evaluate": evaluate})
    write_run_file(soup, run.head.model_copy(update={"study": study}))
    with pytest.raises(InputError, match=r"--dtype is .* float16"):
        compare_models([str(base), str(soup)])
