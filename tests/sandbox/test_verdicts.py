"""What a verdict says of a program, and what may not pass for one that has passed."""

from __future__ import annotations

import pytest

from ablations.sandbox.watch import ProgramVerdict
from layerswap_method.errors import LayerSwapError
from tests.sandbox.conftest import Run


class TestVerdicts:
    def test_code_that_meets_its_tests_passes(self, run: Run):
        source = """
            from dataclasses import dataclass
            from collections import Counter
            @dataclass
            class Pair:
                left: "int"
            def count(words):
                return Counter(words)
            if __name__ == "__main__":
                print(input("a word: "))
        """
        result = run(source, "assert count('aab')['a'] == 2\nassert Pair(3) == Pair(3)")
        assert result == ProgramVerdict(status="passed", detail="")

    def test_a_failure_names_the_test_and_the_reason(self, run: Run):
        result = run("def double(x): return x + x", "assert double(2) == 4\nassert double(0) == 1")
        assert result.status == "failed"
        assert result.detail == "AssertionError at `assert double(0) == 1`"

    @pytest.mark.parametrize(
        ("source", "detail"),
        [
            ("def f(:", "SyntaxError: invalid syntax (<program>, line 1)"),
            ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
            ("x = input()", "EOFError: EOF when reading a line"),
            ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
            ("import os; os.abort()", "ended by SIGABRT"),
            ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ],
    )
    def test_what_cannot_run_says_why(self, run: Run, source: str, detail: str):
        result = run(source, "assert True")
        assert (result.status, result.detail) == ("failed", detail)

    @pytest.mark.parametrize(
        "source", ["x = '\0'", "x = '\ud800'", "(" * 5000, "-" * 100_000 + "1"]
    )
    def test_text_that_is_no_source_is_a_failure(self, run: Run, source: str):
        assert run(source, "assert True").status in ("failed", "memory")

    @pytest.mark.parametrize(
        ("message", "detail"),
        [
            ("'a\\ud800b\\x1b[31m\\0'", "ValueError: a b [31m"),
            ("object()", "ValueError: <object object at 0x...>"),
            ("hex(255)", "ValueError: 0xff"),
        ],
    )
    def test_the_reason_is_one_line_that_can_be_printed_and_compared(
        self, run: Run, message: str, detail: str
    ):
        assert run(f"raise ValueError({message})").detail == detail

    def test_an_exception_that_cannot_be_described_is_a_failure(self, run: Run):
        source = "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E"
        assert run(source).detail == "an exception that cannot be described"


class TestFalsePasses:
    @pytest.mark.parametrize(
        "source",
        [
            "import os; os._exit(0)",
            "import sys; sys.exit(0)",
            "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'passed')\n"
            "    except OSError: pass\nos._exit(0)",
            "import atexit, os; atexit.register(os._exit, 0); raise KeyError",
            "import builtins; builtins.AssertionError = type('E', (BaseException,), {})",
            "import builtins; builtins.exec = builtins.compile = lambda *a, **k: None",
            "def __import__(*a): pass\n__builtins__ = {}",
            "import os; os.write = lambda *a: 0; os._exit = lambda code: None",
            "import os\nif os.fork(): os.wait(); os._exit(0)",
            "import os; os.closerange(3, 64)",
            "import sys\nsys.settrace(lambda f, e, a: None)\ndef jump(frame, event, arg):\n"
            "    if event == 'line' and frame.f_code.co_filename == '<tests>': frame.f_lineno = 2\n"
            "    return jump\nsys._getframe(1).f_trace = jump\nsys.settrace(jump)",
            "import threading, os; threading.Thread(target=os._exit, args=(0,)).start()",
            "import sys; sys.modules['program'].__dict__.clear()",
            "x = '''",
        ],
    )
    def test_no_way_around_the_tests_is_a_pass(self, run: Run, source: str):
        assert run(source, "assert 1 == 2\nx = 3").status == "failed"

    def test_the_proof_is_in_no_variable_while_the_program_runs(self, run: Run):
        source = """
            import gc, sys
            frame, values = sys._getframe(), gc.get_objects()
            while frame := frame.f_back:
                values += frame.f_locals.values()
            found = [each for each in values if isinstance(each, bytes) and len(each) == 32]
        """
        assert run(source, "assert found == []").status == "passed"

    def test_leaving_in_the_midst_of_the_tests_is_no_pass(self, run: Run):
        source = "import os\ndef f(x): os._exit(0)"
        result = run(source, "assert f(1) == 2")
        assert result.status == "failed"
        assert result.detail == "left with exit code 0 before its end"

    def test_a_program_without_time_to_start_is_no_verdict_but_an_error(self, run: Run):
        with pytest.raises(LayerSwapError, match=r"had not started a program .* too busy"):
            run("x = 1", time_s=0)
