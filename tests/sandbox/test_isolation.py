"""Generated programs: what is outside is out of reach."""

import ctypes
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ablations import sandbox
from ablations.tasks.mbpp import NoIsolation, code_isolation, describe_isolation, find_isolation
from tests.sandbox.programs import PASSED, held, run
from tests.waiting import wait_until


@pytest.fixture
def marked():
    """The start of a program that names itself; afterwards no process of that name may be left."""
    name = f"lsw-{secrets.token_hex(4)}"
    yield f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
    wait_until(lambda: not processes_of(name))


def processes_of(marked):
    name = marked.split("'")[1] if "'" in marked else marked
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == name]


@contextmanager
def another_process(environment=None):
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with subprocess.Popen(command, env=environment) as other:
        try:
            yield other
        finally:
            other.kill()


@held
def test_no_secret_and_no_process_is_seen(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    with another_process({"HF_TOKEN": "hf_secret"}):
        source = """
            import os, pathlib
            assert dict(os.environ) == {}
            assert list(pathlib.Path("/proc").glob("[0-9]*")) == []
            assert os.uname().nodename == "sandbox"
        """
        assert run(source) == PASSED


@held
def test_no_socket_is_reached_or_made():
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        where, name = f"/tmp/{secrets.token_hex(8)}", f"\0{secrets.token_hex(8)}"
        for listener, address in ((unix, where), (abstract, name)):
            listener.bind(address)
            listener.listen()
        Path(where).chmod(0o777)
        source = f"""
            import socket
            made, reached = [], []
            for family in range(50):
                try:
                    socket.socket(family, socket.SOCK_DGRAM)
                    made.append(family)
                except OSError:
                    pass
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
        found = run(source, f"assert (made, reached) == ([{int(socket.AF_UNIX)}], []), made")
        Path(where).unlink()
    assert found == PASSED


@held
def test_no_file_outside_is_read_or_written():
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
        attempt(open, "{folder}/new", "w")
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
    assert [each.name for each in folder.iterdir()] == ["secret"]


@held
def test_nobody_is_signalled():
    with another_process() as other:
        source = f"""
            import os, signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for process in (0, os.getppid(), {os.getpid()}, {other.pid}, 1):
                try:
                    os.kill(process, signal.SIGTERM)
                except OSError:
                    pass
        """
        found = run(source)
        assert other.poll() is None
    assert found == PASSED


@held
@pytest.mark.parametrize("call", ["setuid(0)", "chroot(b'.')"])
def test_what_would_lead_out_is_refused(call):
    assert run(f"import ctypes\ndone = ctypes.CDLL(None).{call}", "assert done == -1") == PASSED


@held
@pytest.mark.parametrize("name", list(sandbox._REFUSED))
def test_refused_by_number(name):
    index = 0 if os.uname().machine == "x86_64" else 1
    source = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.syscall({sandbox._REFUSED[name][index]}, 0, 0, 0, 0, 0)
        error = ctypes.get_errno()
    """
    assert run(source, "assert (done, error) == (-1, 1), (done, error)") == PASSED


@held
def test_no_key_of_the_evaluation_is_read():
    """The kernel's session keyring is no namespace's: a program would find what is in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    add, keyctl = (
        sandbox._REFUSED[n][os.uname().machine != "x86_64"] for n in ("add_key", "keyctl")
    )
    if libc.syscall(add, b"user", b"layerswap-test", b"hf_secret", 9, -3) < 0:
        pytest.skip("the kernel keeps no keys here")
    source = f"""
        import ctypes
        found = ctypes.CDLL(None).syscall({keyctl}, 10, -3, b"user", b"layerswap-test", 0)
    """
    assert run(source, "assert found == -1") == PASSED


@held
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as such a user")
def test_the_filter_leaves_an_ordinary_user_what_python_needs():
    """The filter alone, as nobody: threads, forks and pipes work, namespaces do not."""
    source = """
        import ctypes, os, subprocess, threading
        assert os.getuid() > 60000
        threads = [threading.Thread(target=lambda: None) for _ in range(3)]
        for each in threads: each.start()
        for each in threads: each.join()
        if os.fork() == 0: os._exit(0)
        os.wait()
    """
    assert run(source) == PASSED


@held
@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "import time; time.sleep(1000)",
        "import signal; signal.raise_signal(signal.SIGSTOP)",
        "import os, time; os.closerange(0, 64); time.sleep(1000)",
    ],
)
def test_a_program_that_does_not_end_is_ended(source):
    assert run(source, time_s=0.5).status == "timeout"


@held
@pytest.mark.parametrize(
    "source",
    [
        "while True: print('x' * 1000)",
        "open('large', 'wb').write(bytes(2 << 20))",
        "import os\nif os.fork() == 0: os.system('')\nwhile True: os.write(2, b'x' * 1000)",
    ],
)
def test_endless_output_ends(source):
    assert run(source, output=1 << 20).status == "output"


@held
def test_memory_processes_and_files_are_limited():
    assert run("x = bytearray(1 << 30)").status == "memory"
    source = """
        import threading, time
        started = 0
        try:
            for _ in range(100):
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
                started += 1
        except RuntimeError:
            pass
    """
    assert run(source, "assert 2 <= started < 50", memory=4 << 30) == PASSED
    assert "Too many open files" in run("x = [open('/dev/null') for _ in range(80)]").detail


@held
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


@held
def test_an_evaluation_that_is_killed_leaves_no_program(marked):
    source = marked + "import time; time.sleep(1000)"
    call = f"run_program({source!r}, '', 600, 1 << 29, 1000, held=True)"
    script = f"from ablations.sandbox import run_program\n{call}"
    with subprocess.Popen([sys.executable, "-c", script]) as evaluation:
        try:
            wait_until(lambda: processes_of(marked), running=evaluation)
        finally:
            evaluation.kill()
    wait_until(lambda: not processes_of(marked))


@held
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


def test_nothing_runs_where_nothing_holds_it(monkeypatch, fresh_probe):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoIsolation, match="there is no bwrap"):
        find_isolation()
    with code_isolation("none"):
        assert find_isolation() == "none"


def test_a_machine_without_a_filter_holds_nothing(monkeypatch, fresh_probe):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(NoIsolation, match="not riscv64"):
        find_isolation("bwrap")


def test_a_bwrap_that_fails_is_the_reason(tmp_path, monkeypatch, fresh_probe):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho No permissions to create it >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NoIsolation, match=r"machine \(No permissions to create it\), so it is not"):
        find_isolation()


def test_without_isolation_the_limits_stay(marked):
    assert "WITHOUT ISOLATION" in describe_isolation("none")
    source = marked + "import os\nos.fork()\nassert not os.environ\nwhile True: pass"
    assert run(source, time_s=0.5, held=False).status == "timeout"
    source = "import os\nassert os.listdir() == []\nos._exit(0)"
    assert run(source, held=False).status == "failed"
    assert run("x = 0", "assert x", held=False).status == "failed"
    assert run("x = 1", "assert x", held=False) == PASSED
