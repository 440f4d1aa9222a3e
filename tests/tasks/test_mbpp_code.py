"""The program in an answer, whatever a model wrote around it."""

import pytest

from ablations.tasks import code as program
from ablations.tasks.code import extract_code

CODE = "import math\n\ndef area(r):\n    return math.pi * r"
NAMES = {"area"}


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
    ],
)
def test_the_program_is_found(answer: str) -> None:
    assert extract_code(answer, NAMES).replace("\r", "") == CODE


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
def test_what_is_no_plain_program(answer: str, code: str) -> None:
    assert extract_code(answer, NAMES) == code


def test_tested_names_are_what_is_called() -> None:
    tests = [
        "root = Node(1)",
        "assert set(tree_sum(root)) == {1}",
        "assert root.left() == max(1, 2)",
    ]
    assert program.tested_names(tests) == {"Node", "tree_sum"}


def test_a_function_may_have_the_name_of_a_builtin() -> None:
    assert program.tested_names(["assert sum(10, 15) == 6"]) == {"sum"}
    assert extract_code("Prose\n```\ndef sum(a, b):\n    return 6", {"sum"}).startswith("def")
