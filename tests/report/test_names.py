import pytest

from ablations.report.names import language_name, task_name
from ablations.tasks.catalog import list_tasks


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("pocket_math_sw", "math, Swahili"),
        ("pocket_translate_en_sw", "translate, English to Swahili"),
        ("pocket_math_en_2shot", "math, English, 2-shot"),
        ("smol_math_es_4shot", "math, Spanish, 4-shot"),
        ("layerswap_mgsm_te", "MGSM, Telugu"),
        ("xcopa_sw", "xcopa, Swahili"),
        ("hellaswag", "hellaswag"),
        ("sw", "sw"),
        ("arc_xx", "arc xx"),
    ],
)
def test_a_task_is_named_as_a_reader_says_it(task: str, name: str) -> None:
    assert task_name(task) == name


def test_shipped_tasks_have_names_of_their_own() -> None:
    names = [task_name(task.name) for task in list_tasks()]
    assert len(set(names)) == len(names) > 10
    assert not any("_" in name or "layerswap" in name for name in names)


def test_a_code_without_a_name_stays() -> None:
    assert (language_name("sw"), language_name("xx")) == ("Swahili", "xx")
