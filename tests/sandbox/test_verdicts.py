"""Generated programs: what a verdict says, and that no program can write its own."""

import signal

import pytest

from ablations.sandbox import judge
from layerswap_method.errors import LayerSwapError
from tests.sandbox.programs import PASSED, held, run

TOKEN = b"t" * 32
TRACE = b'File "<tests>", line 2, in <module>\nAssertionError\n'


@pytest.mark.parametrize(
    ("code", "said", "printed", "status", "detail"),
    [
        (0, b"." + TOKEN, b"", "passed", ""),
        (0, b"." + TOKEN, b"hello", "passed", ""),
        (3, b"." + TOKEN, b"", "failed", "left with exit code 3 before its end"),
        (-9, b"." + TOKEN, b"", "timeout", "used up its time, or was killed"),
        (None, b"." + TOKEN, b"", "timeout", "used up its time, or was killed"),
        (0, b"." + TOKEN, b"x" * 101, "output", "wrote more than 100 bytes"),
        (0, b".", b"", "failed", "left with exit code 0 before its end"),
        (0, b"." + b"u" * 32, b"", "failed", "left with exit code 0 before its end"),
        (1, b".", TRACE, "failed", "AssertionError at `assert b`"),
        (1, b".", b"NameError: x\x1b[31m\n", "failed", "NameError: x [31m"),
        (1, b".", b"MemoryError\n", "memory", "MemoryError"),
        (1, b".", b"OSError: [Errno 27] File too large\n", "output", "wrote more than 100 bytes"),
        (128 + signal.SIGXFSZ, b".", b"", "output", "wrote more than 100 bytes"),
        (128 + signal.SIGXCPU, b".", b"", "timeout", "used up its time, or was killed"),
        (128 + signal.SIGSEGV, b".", b"", "failed", "ended by SIGSEGV"),
        (-signal.SIGABRT, b".", b"", "failed", "ended by SIGABRT"),
    ],
)
def test_a_verdict(code, said, printed, status, detail):
    found = judge(code, said, TOKEN, printed, 100, "assert a\nassert b")
    assert (found.status, found.detail) == (status, detail)


@pytest.mark.parametrize(
    ("code", "printed", "message"),
    [(1, b"bwrap: no permission\n", "bwrap: no permission"), (2, b"", "2"), (None, b"", "fewer")],
)
def test_what_never_began_is_no_verdict(code, printed, message):
    with pytest.raises(LayerSwapError, match=message):
        judge(code, b"", TOKEN, printed, 100, "")


@held
def test_code_that_meets_its_tests_passes():
    source = """
        from dataclasses import dataclass
        @dataclass
        class Pair:
            left: "int"
        if __name__ == "__main__":
            print(input("a word: "))
    """
    assert run(source, "assert Pair(3) == Pair(3)") == PASSED


@held
@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def double(x): return x - x", "AssertionError at `assert double(2) == 4`"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("x = input()", "EOFError: EOF when reading a line"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("raise ValueError(object())", "ValueError: <object object at 0x...>"),
    ],
)
def test_a_failure_says_why(source, detail):
    found = run(source, "assert double(2) == 4")
    assert (found.status, found.detail) == ("failed", detail)


@held
@pytest.mark.parametrize("source", ["x = '\0'", "x = '\ud800'", "(" * 5000, "-" * 100_000 + "1"])
def test_text_that_is_no_source_is_a_failure(source):
    assert run(source, "assert True").status in ("failed", "memory")


@held
@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import os\ndef f(): os._exit(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'passed')\n"
        "    except OSError: pass\nos._exit(0)",
        "import atexit, os; atexit.register(os._exit, 0); raise KeyError",
        "import sys, os; sys.excepthook = lambda *a: os._exit(0); raise KeyError",
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
def test_no_way_around_the_tests_is_a_pass(source):
    assert run(source, "f = globals().get('f')\nassert f and f() == 2\nx = 3").status == "failed"


@held
def test_the_proof_is_in_no_variable_while_the_program_runs():
    source = """
        import gc, sys
        frame, values = sys._getframe(), gc.get_objects()
        while frame := frame.f_back:
            values += frame.f_locals.values()
        found = [each for each in values if isinstance(each, bytes) and len(each) == 32]
    """
    assert run(source, "assert found == []") == PASSED
