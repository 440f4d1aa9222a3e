"""Each test is something that a generated program might do; none may harm, and none may pass."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from ablations.evaluation import sandbox
from ablations.evaluation.sandbox import Isolation, ProgramResult, run_program
from layerswap_method.errors import InputError, LayerSwapError
from tests.waiting import wait_until

Run = Callable[..., ProgramResult]

NAMESPACES = Isolation(name="namespaces", restricts_files=True)
SECCOMP = Isolation(name="seccomp", restricts_files=True)
NAME_THIS = "import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
"""Gives a process a name that those it forks keep, and that is seen from outside."""


@pytest.fixture(params=[NAMESPACES, SECCOMP], ids=lambda isolation: isolation.name, scope="module")
def isolation(request: pytest.FixtureRequest) -> Isolation:
    if (lacking := sandbox.probe(request.param)) is not None:
        pytest.skip(f"this machine has no such isolation: {lacking}")
    return request.param


@pytest.fixture
def run(isolation: Isolation) -> Run:
    """Runs a program in each kind of isolation that this machine has."""
    return partial(run_in, isolation)


@pytest.fixture
def run_once() -> Run:
    """Runs a program in the best isolation, for what does not depend on it."""
    return partial(run_in, None)


def run_in(
    isolation: Isolation | None, source: str, tests: str = "", **limits: float
) -> ProgramResult:
    settings = {"time_s": 5, "memory_bytes": 512 << 20, "output_bytes": 1 << 16} | limits
    return run_program(textwrap.dedent(source), tests=tests, isolation=isolation, **settings)


@pytest.fixture
def marked() -> Iterator[str]:
    """The start of a program that names itself; afterwards no process of that name may be left."""
    name = f"lsw-{secrets.token_hex(4)}"
    yield NAME_THIS.format(name=name)
    assert processes_named(name) == []


def name_of(marked: str) -> str:
    return marked.split("'")[1]


def processes_named(name: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "comm").read_text().strip() == name:
                found.append(int(process.name))
        except OSError:
            continue
    return found


@contextmanager
def something_else(environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has nothing to do with any program."""
    script = "import time; time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as other:
        try:
            yield other
        finally:
            other.kill()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


class TestVerdicts:
    def test_code_that_meets_its_tests_passes(self, run_once: Run):
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
        result = run_once(source, "assert count('aab')['a'] == 2\nassert Pair(3) == Pair(3)")
        assert result == ProgramResult(status="passed", detail="")

    def test_a_failure_names_the_test_and_the_reason(self, run_once: Run):
        result = run_once(
            "def double(x): return x + x", "assert double(2) == 4\nassert double(0) == 1"
        )
        assert result.status == "failed"
        assert result.detail == "AssertionError at `assert double(0) == 1`"

    def test_output_comes_back(self, run_once: Run):
        assert (
            run_once("print('one'); import sys; print('two', file=sys.stderr)").output
            == "one\ntwo\n"
        )

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
    def test_what_cannot_run_says_why(self, run_once: Run, source: str, detail: str):
        result = run_once(source, "assert True")
        assert (result.status, result.detail) == ("failed", detail)

    @pytest.mark.parametrize(
        "source", ["x = '\0'", "x = '\ud800'", "(" * 5000, "-" * 100_000 + "1"]
    )
    def test_text_that_is_no_source_is_a_failure(self, run_once: Run, source: str):
        assert run_once(source, "assert True").status in ("failed", "memory")

    @pytest.mark.parametrize(
        ("message", "detail"),
        [
            ("'one\\n  two\\u2028three'", "ValueError: one two three"),
            ("'a\\ud800b\\x1b[31m\\0'", "ValueError: a b [31m"),
            ("print", "ValueError: <built-in function print>"),
            ("object()", "ValueError: <object object at 0x...>"),
            ("hex(255)", "ValueError: 0xff"),
        ],
    )
    def test_the_reason_is_one_line_that_can_be_printed_and_compared(
        self, run_once: Run, message: str, detail: str
    ):
        assert run_once(f"raise ValueError({message})").detail == detail

    def test_an_exception_that_cannot_be_described_is_a_failure(self, run_once: Run):
        source = "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E"
        assert run_once(source).detail == "an exception that cannot be described"


class TestFalsePasses:
    @pytest.mark.parametrize(
        "source",
        [
            "import os; os._exit(0)",
            "import sys; sys.exit(0)",
            "raise SystemExit",
            "print('passed'); print('{\"status\": \"passed\"}'); import os; os._exit(0)",
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
    def test_no_way_around_the_tests_is_a_pass(self, run_once: Run, source: str):
        assert run_once(source, "assert 1 == 2\nx = 3").status == "failed"

    def test_the_proof_is_in_no_variable_while_the_program_runs(self, run_once: Run):
        source = """
            import gc, sys
            frame, values = sys._getframe(), gc.get_objects()
            while frame := frame.f_back:
                values += frame.f_locals.values()
            found = [each for each in values if isinstance(each, bytes) and len(each) == 32]
        """
        assert run_once(source, "assert found == []").status == "passed"

    def test_leaving_in_the_midst_of_the_tests_is_no_pass(self, run_once: Run):
        source = "import os\ndef f(x): os._exit(0)"
        result = run_once(source, "assert f(1) == 2")
        assert result.status == "failed"
        assert result.detail == "left with exit code 0 before its end"


class TestLimits:
    def test_an_endless_loop_ends(self, run: Run):
        assert run("while True: pass", time_s=0.5).status == "timeout"

    def test_an_endless_loop_that_ignores_the_signal_ends(self, run: Run):
        source = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
        assert run(source, time_s=0.5).status == "timeout"

    @pytest.mark.parametrize(
        "source",
        [
            "import time; time.sleep(1000)",
            "import signal; signal.raise_signal(signal.SIGSTOP)",
            "import threading; threading.Event().wait()",
        ],
    )
    def test_a_program_that_waits_forever_ends(self, run: Run, source: str):
        assert run(source, time_s=0.2).status == "timeout"

    def test_a_machine_that_stands_still_takes_no_time_from_a_program(self, run: Run, marked: str):
        before = children()
        with ThreadPoolExecutor(1) as pool:
            # It has 1.5 s of which it needs a third.
            result = pool.submit(run, marked + "import time; time.sleep(0.5)", time_s=0.5)
            wait_until(lambda: processes_named(name_of(marked)) or result.done())
            stopped = [
                each
                for each in psutil.Process().children(recursive=True)
                if before.isdisjoint({each.pid, *(parent.pid for parent in each.parents())})
            ]
            for step in (psutil.Process.suspend, psutil.Process.resume):
                for each in stopped:
                    with suppress(psutil.NoSuchProcess):
                        step(each)
                time.sleep(2 * (step is psutil.Process.suspend))
        assert result.result().status == "passed"

    def test_endless_output_ends(self, run: Run):
        result = run("while True: print('x' * 1000)", output_bytes=1 << 20)
        assert result.status == "output"
        assert result.detail == "wrote more than 1048576 bytes"
        assert len(result.output) == 2000

    def test_a_large_file_ends(self, run: Run):
        source = "open('large', 'wb').write(bytes(2 << 20))"
        assert run(source, output_bytes=1 << 20).status == "output"

    def test_memory_ends(self, run: Run):
        assert run("x = [0]\nwhile True: x += x").status == "memory"

    def test_a_fork_bomb_ends(self, run: Run, marked: str):
        source = marked + "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        assert run(source, "assert False", time_s=0.5).status in ("timeout", "failed")

    def test_few_processes_and_files_are_to_be_had(self, run: Run):
        source = """
            import os, threading, time
            started = 0
            try:
                for _ in range(100):
                    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
                    started += 1
            except RuntimeError:
                pass
        """
        assert run(source, "assert 2 <= started < 50", memory_bytes=4 << 30).status == "passed"
        assert "Too many open files" in run("x = [open('/dev/null') for _ in range(80)]").detail


class TestLeftovers:
    def test_daemons_end_with_the_program(self, run: Run, marked: str):
        source = marked + textwrap.dedent("""
            import os, time
            if os.fork() == 0:
                try: os.setsid()
                except OSError: pass
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
            time.sleep(0.1)
        """)
        assert run(source, "assert True").status == "passed"

    def test_no_zombie_and_no_folder_is_left(self, run: Run, monkeypatch: pytest.MonkeyPatch):
        before = children()
        # Other tests use the common one meanwhile. Not `tmp_path`, which is its user's alone.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            monkeypatch.setattr(tempfile, "tempdir", folder)
            run("import os\nfor _ in range(5): os.fork()\nopen('left', 'w').write('x')")
            assert list(Path(folder).iterdir()) == []
        assert children() <= before

    def test_an_evaluation_that_is_killed_leaves_no_program(
        self, isolation: Isolation, marked: str
    ):
        name = name_of(marked)
        script = (
            "from ablations.evaluation.sandbox import Isolation, run_program\n"
            f"print(run_program({marked + 'import time; time.sleep(1000)'!r}, time_s=600, "
            "memory_bytes=1 << 29, output_bytes=1000, "
            f"isolation=Isolation(**{isolation.model_dump()})))"
        )
        with subprocess.Popen([sys.executable, "-c", script]) as evaluation:
            try:
                wait_until(lambda: processes_named(name), running=evaluation)
            finally:
                evaluation.kill()
        wait_until(lambda: not processes_named(name))

    def test_programs_at_once_do_not_meet(self, run: Run):
        def square(number: int) -> ProgramResult:
            source = f"import os\nassert os.listdir() == []\nopen('mine', 'w').write('{number}')"
            return run(source, f"assert open('mine').read() == '{number}'\nassert {number} % 3")

        before = children()
        with ThreadPoolExecutor(6) as pool:
            results = list(pool.map(square, range(18)))
        assert [each.status for each in results] == ["failed", "passed", "passed"] * 6
        assert children() <= before


class TestOutside:
    def test_no_secret_is_seen(self, run: Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
        with something_else({"HF_TOKEN": "hf_secret"}):
            source = """
                import os, pathlib
                assert dict(os.environ) == {}
                for process in pathlib.Path("/proc").glob("[0-9]*"):
                    try:
                        text = (process / "environ").read_bytes()
                    except OSError:
                        continue
                    assert b"hf_secret" not in text
            """
            result = run(source)
        assert result == ProgramResult(status="passed", detail="")

    def test_no_socket_is_reached(self, run: Run, tmp_path: Path):
        with (
            socket.create_server(("127.0.0.1", 0)) as tcp,
            socket.socket(socket.AF_UNIX) as unix,
            socket.socket(socket.AF_UNIX) as abstract,
        ):
            where = f"/tmp/{secrets.token_hex(8)}"
            unix.bind(where)
            unix.listen()
            Path(where).chmod(0o777)
            name = f"\0{secrets.token_hex(8)}"
            abstract.bind(name)
            abstract.listen()
            source = f"""
                import socket
                reached = []
                for family, address in (
                    (socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
                    (socket.AF_UNIX, {where!r}),
                    (socket.AF_UNIX, {name!r}),
                ):
                    try:
                        socket.socket(family).connect(address)
                        reached.append(address)
                    except OSError:
                        pass
            """
            result = run(source, "assert reached == [], reached")
            Path(where).unlink()
        assert result == ProgramResult(status="passed", detail="")

    def test_no_file_outside_is_read_or_written(self, run: Run):
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o777)
        (folder / "secret").write_text("secret")
        (folder / "secret").chmod(0o666)
        source = f"""
            import os
            done = []
            def attempt(what, *arguments):
                try:
                    what(*arguments)
                    done.append((what.__name__, arguments))
                except OSError:
                    pass
            attempt(open, "{folder}/secret")
            attempt(open, "{folder}/secret", "w")
            attempt(open, "{folder}/new", "w")
            attempt(os.remove, "{folder}/secret")
            attempt(os.listdir, "{Path(__file__).parent}")
            attempt(open, "{__file__}")
            attempt(open, "/etc/passwd")
            attempt(open, os.__file__, "a")
            attempt(os.remove, os.__file__)
            attempt(open, "/new", "w")
            attempt(open, "/tmp/new", "w")
            open("mine", "w").write("x")
            os.mkdir("folder")
        """
        result = run(source, "assert done == [], done")
        assert result == ProgramResult(status="passed", detail="")
        assert [(each.name, each.read_text()) for each in folder.iterdir()] == [
            ("secret", "secret")
        ]

    def test_nobody_is_signalled(self, run: Run):
        with something_else() as other:
            source = f"""
                import os, signal
                for process in (-1, 0, os.getppid(), {os.getpid()}, {other.pid}, 1):
                    try:
                        os.kill(process, signal.SIGKILL)
                    except OSError:
                        pass
            """
            result = run(source)
            assert other.poll() is None
        assert result.status == "passed"

    def test_nothing_can_be_taken_back(self, run: Run):
        source = """
            import ctypes, os, resource
            libc = ctypes.CDLL(None, use_errno=True)
            done = []
            for name, arguments in {
                "unshare": (0x10000000 | 0x40000000,),
                "setuid": (0,) if os.getuid() else (1,),
                "mount": (b"tmpfs", b".", b"tmpfs", 0, None),
                "chroot": (b".",),
                "ptrace": (16, os.getppid(), 0, 0),
                "setsid": (),
            }.items():
                if getattr(libc, name)(*arguments) >= 0:
                    done.append(name)
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
                done.append("setrlimit")
            except ValueError:
                pass
        """
        result = run(source, "assert done == [], done")
        assert result == ProgramResult(status="passed", detail="")


class TestRefusal:
    def test_nothing_runs_where_nothing_holds_it(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sandbox, "probe", lambda isolation: "not here")
        sandbox.find_isolation.cache_clear()
        with pytest.raises(InputError) as refused:
            run_program("x = 1", time_s=1, memory_bytes=1 << 28, output_bytes=100)
        sandbox.find_isolation.cache_clear()
        assert refused.value.message == (
            "generated code cannot be held on this machine, so none is run:\n"
            "  - namespaces: not here\n"
            "  - seccomp with Landlock: not here\n"
            "  - seccomp: not here\n"
            "Run it on Linux (x86_64 or aarch64), outside a container or in one that allows "
            "seccomp."
        )

    def test_where_namespaces_are_forbidden_the_next_best_holds(self):
        script = (
            "import ctypes; from ablations.evaluation.jail import kernel, restrictions\n"
            "from ablations.evaluation import sandbox\n"
            # As in a container: unshare is denied to this process and its children.
            "restrictions._DENIED = {'unshare': restrictions._DENIED['unshare']}\n"
            "kernel.forbid_new_privileges(); restrictions.restrict_calls()\n"
            "found = sandbox.find_isolation()\n"
            "print(found.name, '|', found.reason)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=300)
        if b"cannot be held on this machine" in done.stderr:
            pytest.skip("this machine has no seccomp either")
        assert done.stdout.decode() == (
            "seccomp | namespaces: [Errno 1] unshare: Operation not permitted\n"
        )

    def test_the_weakest_says_aloud_what_it_lacks(self):
        weakest = Isolation(name="seccomp", restricts_files=False, reason="namespaces: EPERM")
        assert "CAN READ AND WRITE every file" in weakest.describe()
        assert "namespaces: EPERM" in weakest.describe()

    def test_a_broken_inside_is_an_error_and_no_verdict(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sandbox, "_BOOT", "raise RuntimeError('broken')")
        lacking = sandbox.probe(NAMESPACES)
        assert lacking == "RuntimeError: broken"
        with pytest.raises(LayerSwapError, match=r"sandbox \(namespaces\): RuntimeError: broken"):
            run_in(NAMESPACES, "x = 1")

    @pytest.mark.parametrize(
        "limits",
        [
            {"time_s": 0, "memory_bytes": 1 << 28, "output_bytes": 1},
            {"time_s": 1, "memory_bytes": 1 << 20, "output_bytes": 1},
            {"time_s": 1, "memory_bytes": 1 << 28, "output_bytes": 0},
        ],
    )
    def test_limits_have_ranges(self, limits: dict[str, int]):
        with pytest.raises(ValueError, match="needed are > 0, >= 134217728, >= 1"):
            run_program("x = 1", **limits)

    def test_tests_that_are_no_python_are_an_error(self):
        with pytest.raises(SyntaxError):
            run_program("", tests="assert (", time_s=1, memory_bytes=1 << 28, output_bytes=1)
