"""MBPP: the program in an answer; gold programs pass, others fail, none runs unasked."""

import platform

import pytest
import yaml

from ablations import sandbox
from ablations.sandbox import ProgramVerdict
from ablations.scoring.evaluation import Evaluation
from ablations.tasks import mbpp
from ablations.tasks.catalog import SHIPPED_TASKS
from ablations.tasks.mbpp import extract_code
from tests.standins.scripted import DATA, ask, read_jsonl, task_names
from tests.tasks.test_scores import check_prompt

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAMES = task_names("mbpp")
GOLD = {row["task_id"]: row["code"] for row in read_jsonl(DATA / "mbpp" / "en_test.jsonl")}
CODE = "import math\n\ndef area(r):\n    return math.pi * r"

needs_sandbox = pytest.mark.skipif(
    sandbox.probe() is not None, reason=f"this machine can hold no program: {sandbox.probe()}"
)


def gold(task, item):
    return f"{GOLD[item['task_id']]}\n```"


def perturbed(task, item):
    return gold(task, item).replace("return", "return not")


def run(say, tasks=NAMES, **options):
    return ask(say, tasks, **{"isolation": "bwrap", **options})


def scores_of(evaluation):
    own = [each for each in evaluation.scores if each.metric == "pass@1"]
    assert {(each.filter, each.n) for each in own} == {("extracted", 3)}
    return {each.task: each.value for each in own}


@needs_sandbox
class TestScores:
    @pytest.fixture(scope="class")
    def right(self):
        return run(gold)

    @pytest.mark.parametrize("task", NAMES)
    def test_the_prompt_is_the_one_on_file(self, right, task):
        check_prompt(right, task)

    def test_gold_programs_score_one_and_perturbed_ones_zero(self, right):
        assert scores_of(right) == dict.fromkeys(NAMES, 1.0)
        assert scores_of(run(perturbed)) == dict.fromkeys(NAMES, 0.0)

    def test_an_answer_that_only_ends_the_process_scores_zero(self):
        def leave(task, item):
            (name,) = mbpp.tested_names(item["test_list"])
            return f"import os\n{name} = lambda *a: os._exit(0)"

        assert scores_of(run(leave, NAMES[-1:])) == {NAMES[-1]: 0.0}

    def test_each_item_has_its_own_verdict(self):
        def some(task, item):
            return (perturbed if item["task_id"] == 12 else gold)(task, item)

        evaluation = run(some, NAMES[-1:])
        first, second, third = evaluation.samples
        assert [each.values["pass@1"] for each in evaluation.samples] == [1.0, 0.0, 1.0]
        assert second.responses == (perturbed("", {"task_id": 12}),)
        assert second.answers == (second.responses[0].removesuffix("\n```"),)
        assert first.target.split("\n")[0] == "assert count_vowels('banana') == 3"
        assert first.program == third.program == ProgramVerdict(status="passed", detail="")
        assert second.program.detail.startswith("AssertionError at `assert ")
        assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation

    def test_a_record_says_what_stopped_its_program(self, monkeypatch):
        monkeypatch.setattr(mbpp, "TIME_S", 1.0)
        monkeypatch.setattr(mbpp, "OUTPUT_BYTES", 1000)
        answers = {11: "while True: pass", 12: "print('x' * 2000)", 510: "x = [0] * (1 << 40)"}
        evaluation = run(lambda task, item: answers[item["task_id"]], NAMES[-1:])
        empty = run(lambda task, item: " ", NAMES[-1:])
        slow, *others = (each.program for each in (*evaluation.samples, empty.samples[0]))
        assert slow.status == "timeout"
        assert others == [
            ProgramVerdict(status="output", detail="wrote more than 1000 bytes"),
            ProgramVerdict(status="memory", detail="MemoryError"),
            ProgramVerdict(status="failed", detail="there is no code in the answer"),
        ]

    def test_the_notes_say_how_code_was_held_and_what_was_asked_in_english(self, right):
        *prompts, held = right.notes
        assert len(prompts) == 3
        assert "layerswap_mbpp_bn: prompts are in 'en', because there is no trans" in prompts[0]
        assert held.startswith(f"Python {platform.python_version()}: generated code runs under")
        unheld = run(gold, NAMES[-1:], isolation="none")
        assert scores_of(unheld) == {NAMES[-1]: 1.0}
        assert "WITHOUT ISOLATION, only with limits" in unheld.notes[-1]


def test_without_the_flag_nothing_is_asked_or_run():
    def refuse(task, item):
        raise AssertionError("the model was asked")

    evaluation = ask(refuse, NAMES)
    assert evaluation.skipped == dict.fromkeys(NAMES, "needs --allow-code-execution")
    assert evaluation.scores == evaluation.samples == ()


def test_plain_lm_eval_refuses_as_well():
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    places = {"include_path": str(SHIPPED_TASKS), "metadata": {"data_dir": str(DATA)}}
    manager = TaskManager(include_defaults=False, **places)
    with pytest.raises(ValueError, match="layerswap_mbpp_te which is marked as unsafe"):
        simple_evaluate(model="dummy", tasks=["layerswap_mbpp_te"], task_manager=manager)


def test_no_stop_string_is_in_an_answer():
    for name in NAMES:
        path = SHIPPED_TASKS / "generated" / f"{name}.yaml"
        stops = yaml.safe_load(path.read_text(encoding="utf-8"))["generation_kwargs"]["until"]
        assert len(stops) == 5
        for code in GOLD.values():
            fenced = f"```python\n{code}\n```"
            for answer in (code, fenced, f"Here it is:\n{fenced}\n", f"Here it is:\n\n{fenced}"):
                assert not [stop for stop in stops if stop in answer]


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"{CODE}\n```",
        f"{CODE}\n```\n",
        f" {CODE}\n```\n\nThis function multiplies.",
        f"\n{CODE}\r\n```\r\nDone.",
        f"```python\n{CODE}\n```",
        f" ```python\n{CODE}\n```",
        f"```\n{CODE}\n```\n",
        f"Here is the function:\n\n```python\n{CODE}\n```\nIt uses `math`.",
        f"Here is the function:\n```\n{CODE}\n```",
        f"Here is the function:\n\n```py\n{CODE}\n",
        f"~~~python\n{CODE}\n~~~",
        f"{CODE}\n```\n\n```python\nprint(area(2))\n```",
        f"{CODE}\n```\nOr shorter:\n```python\narea = lambda r: 3 * r\n```",
        f"```python\nprint('an example first')\n```\n```python3\n{CODE}\n```",
        "    import math\n\n    def area(r):\n        return math.pi * r\n    ```",
        f"\n\n{CODE}\n\n\n",
        # As MBPP's authors and Code Llama mark programs.
        f"[BEGIN]\n{CODE}\n[DONE]\n",
        f"{CODE}\n[DONE]",
        f"Here it is:\n[PYTHON]\n{CODE}\n[/PYTHON]\n[TESTS]\nassert area(0) == 0\n[/TESTS]",
        f"[PYTHON] {CODE} [/PYTHON]\nDone.",
        f'```python title="area.py"\n{CODE}\n```',
        f"``` python area.py\n{CODE}\n```",
        f"```python {{linenos=true}}\n{CODE}\n```",
    ],
)
def test_the_program_is_found(answer):
    assert extract_code(answer, {"area"}).replace("\r", "") == CODE


BLOCKS = {
    "a function": ("def square(r):\n    return r * r", "def area(r):\n    return 3 * square(r)"),
    "an import": ("import math", "def area(r):\n    return math.pi * r"),
    "a name of an import": ("from math import pi as PI", "def area(r):\n    return PI * r"),
    "a value": ("PI: float = 3.14", "area = lambda r: PI * r"),
    "a class": ("@dataclass\nclass Circle:\n    r: int", "def area(r):\n    return Circle(r)"),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_program_uses_is_taken_from_another_block(kind):
    helper, code = BLOCKS[kind]
    example = "print(area(2))\nprint(len(area))"
    for first, second in [(helper, code), (code, helper)]:
        answer = f"{first}\n```\nThen:\n```python\n{second}\n{example}\n```\nDone."
        expected = f"{code}\n{example}" if second == code else code
        assert extract_code(answer, {"area"}) == f"{helper}\n\n{expected}"


def test_of_another_block_only_what_is_used_is_taken():
    helpers = "import os\n\ndef twice(r):\n    return r + r\n\ndef used(r):\n    return twice(r)"
    answer = f"{helpers}\nused(1)\n```\n```\ndef area(os, r=0):\n    return used(os)\n```"
    assert extract_code(answer, {"area"}).split("\n\n") == [
        *helpers.split("\n\n")[1:],
        "def area(os, r=0):\n    return used(os)",
    ]
    for noise in ("(" * 5_000, "-" * 50_000 + "1", "a\0b", "'\\d'", "x" + ".a" * 5_000):
        answer = f"{noise}\n```\n```\ndef area(r):\n    return helper(r)\n```"
        assert extract_code(answer, {"area"}) == "def area(r):\n    return helper(r)"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("", ""),
        (" ", ""),
        ("\n```\n```\n", ""),
        # One space is the tokenizer's; the body keeps its own indentation.
        (" def area(r):\n    return r", "def area(r):\n    return r"),
        ("   import math\ndef area(r):\n  pass", "import math\ndef area(r):\n  pass"),
        ("area = lambda r: r\n```\nNote.", "area = lambda r: r"),
        ("Note.\n```\narea: int = max\n```", "area: int = max"),
        ("Note.\n```\nclass area:\n    pass\n```", "class area:\n    pass"),
        # A fence inside a line, or a text, is none.
        ("def area(r):\n    'as ```r```'", "def area(r):\n    'as ```r```'"),
        # What is called and not defined is left to fail by itself.
        ("x = area == 3\n```\ny = 2", "x = area == 3"),
        ("def other(r):\n    return r\n```\nprose", "def other(r):\n    return r"),
    ],
)
def test_what_is_no_plain_program(answer, code):
    assert extract_code(answer, {"area"}) == code


def test_tested_names_are_what_is_called():
    tests = ["r = Node(1)", "assert set(tree_sum(r)) == {1}", "assert r.left() == max(1, 2)"]
    assert mbpp.tested_names(tests) == {"Node", "tree_sum"}
    # A function may have the name of a builtin.
    assert mbpp.tested_names(["assert sum(10, 15) == 6"]) == {"sum"}
    assert extract_code("Prose\n```\ndef sum(a, b):\n    return 6", {"sum"}).startswith("def")
