"""Generated programs: what is outside is out of reach, and no program writes its own verdict."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ablations import sandbox
from ablations.sandbox import ProgramVerdict, judge, run_program
from ablations.tasks.mbpp import NoIsolation, check_isolation, describe_isolation
from layerswap_method.errors import LayerSwapError
from tests.kills import kill_when, start
from tests.waiting import wait_until

needs_sandbox = pytest.mark.skipif(
    sandbox.probe() is not None, reason=f"no program can be held here: {sandbox.probe()}"
)
PASSED = ProgramVerdict(status="passed")
TOKEN = b"t" * 32


def number_of(call):
    return sandbox.number_of(sandbox._REFUSED[call], os.uname().machine)


def run(source, tests="", *, time_s=5, memory=512 << 20, output=1 << 16, sandboxed=True):
    return run_program(textwrap.dedent(source), tests, time_s, memory, output, sandboxed=sandboxed)


@pytest.fixture
def marked():
    """The start of a program that names itself; afterwards no process of that name may be left."""
    name = f"lsw-{secrets.token_hex(4)}"
    yield f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
    wait_until(lambda: not processes_of(name))


def processes_of(marked):
    name = marked.split("'")[1] if "'" in marked else marked
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == name]


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("import ctypes\ndone = ctypes.CDLL(None).setuid(0)", "assert done == -1"),
        ("import ctypes\ndone = ctypes.CDLL(None).chroot(b'.')", "assert done == -1"),
        (  # what Python needs stays: data classes, input and output, threads, forks and pipes
            """
            from dataclasses import dataclass
            @dataclass
            class Pair:
                left: "int"
            if __name__ == "__main__":
                print(input("a word: "))
            """,
            "assert Pair(3) == Pair(3)",
        ),
        (
            """
            import os, subprocess, threading
            assert os.getuid() > 0
            threads = [threading.Thread(target=lambda: None) for _ in range(3)]
            for each in threads: each.start()
            for each in threads: each.join()
            if os.fork() == 0: os._exit(0)
            os.wait()
            """,
            "",
        ),
        (  # the proof is in no variable while the program runs
            """
            import gc, sys
            frame, values = sys._getframe(), gc.get_objects()
            while frame := frame.f_back:
                values += frame.f_locals.values()
            found = [each for each in values if isinstance(each, bytes) and len(each) == 32]
            """,
            "assert found == []",
        ),
        (
            """
            import threading, time
            started = 0
            try:
                for _ in range(100):
                    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
                    started += 1
            except RuntimeError:
                pass
            """,
            "assert 2 <= started < 50",
        ),
    ],
)
def test_what_a_program_may_and_may_not(source, tests):
    assert run(source, tests, memory=4 << 30) == PASSED


@needs_sandbox
def test_no_secret_and_no_process_is_seen_or_signalled(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with subprocess.Popen(command) as other:
        source = f"""
            import os, pathlib, signal
            assert dict(os.environ) == {{}}
            assert list(pathlib.Path("/proc").glob("[0-9]*")) == []
            assert os.uname().nodename == "sandbox"
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for process in (0, os.getppid(), {os.getpid()}, {other.pid}, 1):
                try:
                    os.kill(process, signal.SIGTERM)
                except OSError:
                    pass
        """
        try:
            assert run(source) == PASSED
            assert other.poll() is None
        finally:
            other.kill()


@needs_sandbox
def test_no_socket_is_reached_or_made():
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        places = [f"/tmp/{secrets.token_hex(8)}", f"\0{secrets.token_hex(8)}"]
        for place in places:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(place)
            listener.listen()
        Path(places[0]).chmod(0o777)
        stack.callback(Path(places[0]).unlink)
        source = f"""
            import socket
            made, reached = [], []
            for family in range(50):
                try:
                    socket.socket(family, socket.SOCK_DGRAM)
                    made.append(family)
                except OSError:
                    pass
            for address in (("127.0.0.1", {tcp.getsockname()[1]}), *{places!r}):
                kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
                try:
                    socket.socket(kind).connect(address)
                    reached.append(address)
                except OSError:
                    pass
        """
        tests = f"assert (made, reached) == ([{int(socket.AF_UNIX)}], []), made"
        assert run(source, tests) == PASSED


@needs_sandbox
def test_no_file_outside_is_read_or_written(tmp_path):
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o777)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o666)
    source = f"""
        import os
        done = []
        def attempt(what, *arguments):
            try:
                what(*arguments)
                done.append((what.__name__, arguments))
            except OSError:
                pass
        attempt(open, "{tmp_path}/secret")
        attempt(open, "{tmp_path}/new", "w")
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
    assert run(source, "assert done == [], done") == PASSED
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@needs_sandbox
@pytest.mark.parametrize("name", list(sandbox._REFUSED))
def test_refused_by_number(name):
    source = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.syscall({number_of(name)}, 0, 0, 0, 0, 0)
        error = ctypes.get_errno()
    """
    assert run(source, "assert (done, error) == (-1, 1), (done, error)") == PASSED


@needs_sandbox
def test_no_key_of_the_evaluation_is_read():
    """The kernel's session keyring is no namespace's: a program would find what is in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number_of("add_key"), b"user", b"layerswap-test", b"hf_secret", 9, -3) < 0:
        pytest.skip("the kernel keeps no keys here")
    call = f'syscall({number_of("keyctl")}, 10, -3, b"user", b"layerswap-test", 0)'
    assert run(f"import ctypes\nfound = ctypes.CDLL(None).{call}", "assert found == -1") == PASSED


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("while True: pass", "timeout"),
        ("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile 1: pass", "timeout"),
        ("import time; time.sleep(1000)", "timeout"),
        ("import signal; signal.raise_signal(signal.SIGSTOP)", "timeout"),
        ("import os, time; os.closerange(0, 64); time.sleep(1000)", "timeout"),
        ("while True: print('x' * 1000)", "output"),
        ("open('large', 'wb').write(bytes(2 << 20))", "output"),
        ("import os\nif os.fork() == 0: os.system('')\nwhile 1: os.write(2, b'x' * 999)", "output"),
        ("x = bytearray(1 << 30)", "memory"),
        ("x = [open('/dev/null') for _ in range(80)]", "failed"),
    ],
)
def test_time_output_memory_and_files_end(source, status):
    time_s = 0.5 if status == "timeout" else 5
    assert run(source, time_s=time_s, output=1 << 20).status == status


@needs_sandbox
def test_daemons_end_with_the_program(marked):
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
time.sleep(0.1)
"""
    assert run(marked + source) == PASSED


@needs_sandbox
def test_an_evaluation_that_is_killed_leaves_no_program(marked):
    source = marked + "import time; time.sleep(1000)"
    call = f"run_program({source!r}, '', 600, 1 << 29, 1000, sandboxed=True)"
    script = f"from ablations.sandbox import run_program\n{call}"
    evaluation = start([sys.executable, "-c", script])
    code = kill_when(evaluation, lambda: processes_of(marked))
    assert code == -signal.SIGKILL, "it ended before it could be killed"
    wait_until(lambda: not processes_of(marked))


@needs_sandbox
def test_programs_at_once_do_not_meet():
    def square(number):
        source = f"import os\nassert os.listdir() == []\nopen('mine', 'w').write('{number}')"
        tests = f"assert open('mine').read() == '{number}'\nassert {number} % 3"
        return run(source, tests).status

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(square, range(18))) == ["failed", "passed", "passed"] * 6


@pytest.fixture
def fresh_probe():
    sandbox.probe.cache_clear()
    yield
    sandbox.probe.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
def test_nothing_runs_where_nothing_holds_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(NoIsolation, match="there is no bwrap"):
            check_isolation("bwrap")
        check_isolation("none")
    sandbox.probe.cache_clear()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho No permissions to create it >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NoIsolation, match=r"machine \(No permissions to create it\), so it is not"):
        check_isolation("bwrap")
    sandbox.probe.cache_clear()
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(NoIsolation, match="not riscv64"):
        check_isolation("bwrap")


def test_without_isolation_the_limits_stay(marked):
    assert "WITHOUT ISOLATION" in describe_isolation("none")
    source = marked + "import os\nos.fork()\nassert not os.environ\nwhile True: pass"
    assert run(source, time_s=0.5, sandboxed=False).status == "timeout"
    source = "import os\nassert os.listdir() == []\nos._exit(0)"
    assert run(source, sandboxed=False).status == "failed"
    assert run("x = 0", "assert x", sandboxed=False).status == "failed"
    assert run("x = 1", "assert x", sandboxed=False) == PASSED


@pytest.mark.parametrize(
    ("code", "said", "printed", "status", "detail"),
    [
        (0, b"." + TOKEN, b"", "passed", ""),
        (3, b"." + TOKEN, b"", "failed", "ended with exit code 3 before its tests were done"),
        (-9, b"." + TOKEN, b"", "timeout", "used up its time, or was killed"),
        (None, b"." + TOKEN, b"", "timeout", "used up its time, or was killed"),
        (0, b"." + TOKEN, b"x" * 101, "output", "wrote more than 100 bytes"),
        (0, b".", b"", "failed", "ended with exit code 0 before its tests were done"),
        (0, b"." + b"u" * 32, b"", "failed", "ended with exit code 0 before its tests were done"),
        (1, b".", b'File "<tests>", line 2, in <m>\nNo', "failed", "No at `assert b`"),
        (1, b".", b'File "<tests>", line 999\nNo', "failed", "No"),
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


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def double(x): return x - x", "AssertionError at `assert double(2) == 4`"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
        ("raise ValueError(object())", "ValueError: <object object at 0x...>"),
        *((text, None) for text in ("x = '\0'", "x = '\ud800'", "(" * 5000, "-" * 100_000 + "1")),
    ],
)
def test_a_failure_says_why(source, detail):
    found = run(source, "assert double(2) == 4")
    if detail is None:  # text that is no source
        assert found.status in ("failed", "memory")
    else:
        assert (found.status, found.detail) == ("failed", detail)


@needs_sandbox
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
