"""What is outside is out of reach; what asks for too much ends, with all that it has started."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pydantic
import pytest

from ablations.sandbox import programs
from ablations.sandbox.programs import code_isolation, run_program
from ablations.sandbox.watch import ProgramVerdict
from layerswap_method.errors import InputError
from tests.sandbox.conftest import Run, processes_marked, something_else
from tests.waiting import wait_until

PASSED = ProgramVerdict(status="passed", detail="")
LIMITS = {"memory_bytes": 1 << 29, "output_bytes": 1000}


class TestOutside:
    def test_no_secret_is_seen(self, run: Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
        with something_else({"HF_TOKEN": "hf_secret"}):
            source = """
                import os, pathlib
                assert dict(os.environ) == {}
                assert list(pathlib.Path("/proc").glob("[0-9]*")) == []
            """
            assert run(source) == PASSED

    def test_no_socket_is_reached(self, run: Run):
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
        assert result == PASSED

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

    def test_nobody_is_signalled(self, run: Run):
        with something_else() as other:
            source = f"""
                import os, signal
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                for process in (0, os.getppid(), {os.getpid()}, {other.pid}, 1):
                    try:
                        os.kill(process, signal.SIGTERM)
                    except OSError:
                        pass
            """
            result = run(source)
            assert other.poll() is None
        assert result == PASSED

    def test_nothing_can_be_taken_back(self, run: Run):
        source = """
            import ctypes, os, resource
            libc = ctypes.CDLL(None, use_errno=True)
            done = []
            for name, arguments in {
                "unshare": (0x10000000 | 0x40000000,),
                "setuid": (0,),
                "mount": (b"tmpfs", b".", b"tmpfs", 0, None),
                "chroot": (b".",),
            }.items():
                if getattr(libc, name)(*arguments) >= 0:
                    done.append(name)
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
                done.append("setrlimit")
            except ValueError:
                pass
        """
        assert run(source, "assert done == [], done") == PASSED

    @pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as such a user")
    def test_programs_of_an_ordinary_user_are_held_as_well(self):
        """They are held in another way than those of root; needs what everybody may read."""
        source = """
import ctypes, os, threading, time
libc, started = ctypes.CDLL(None), 0
assert libc.unshare(0x10000000 | 0x40000000) == libc.chroot(b".") == -1
assert libc.mount(b"tmpfs", b".", b"tmpfs", 0, None) == -1
assert os.listdir("/work") == [] and not os.path.exists("/etc/passwd")
try:
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
assert started < 50
"""
        limits = "time_s=5, memory_bytes=4 << 30, output_bytes=1000"
        script = (
            f"from ablations.sandbox.programs import *\nprint(run_program({source!r}, {limits}))"
        )
        folders = [str(Path(programs.__file__).parents[2]), str(Path(pydantic.__file__).parents[1])]
        found = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(folders)}
        nobody = {"user": 65534, "group": 65534, "extra_groups": [], "env": found, "cwd": "/"}
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        try:
            subprocess.run([python, "-B", "-c", "import pydantic, ablations"], check=True, **nobody)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"nobody cannot use {python} with this checkout")
        done = subprocess.run(
            [python, "-B", "-c", script], stdout=subprocess.PIPE, text=True, check=True, **nobody
        )
        assert done.stdout == "status='passed' detail=''\n"


class TestLimits:
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
    def test_a_program_that_does_not_end_is_ended(self, run: Run, source: str):
        assert run(source, time_s=0.5).status == "timeout"

    def test_a_machine_that_stands_still_takes_no_time_from_a_program(self, marked: str):
        # It has 1.5 s of which it needs a third.
        source = marked + "import time; time.sleep(0.5)"
        script = (
            "from ablations.sandbox.programs import run_program\n"
            f"print(run_program({source!r}, time_s=0.5, **{LIMITS}).status)"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as evaluation:
            wait_until(lambda: processes_marked(marked), running=evaluation)
            whole = psutil.Process(evaluation.pid)
            stopped = [whole, *whole.children(recursive=True)]
            for step in (psutil.Process.suspend, psutil.Process.resume):
                for each in stopped:
                    with suppress(psutil.NoSuchProcess):
                        step(each)
                time.sleep(2 * (step is psutil.Process.suspend))
            assert evaluation.communicate()[0] == "passed\n"

    @pytest.mark.parametrize(
        "source",
        [
            "while True: print('x' * 1000)",
            "open('large', 'wb').write(bytes(2 << 20))",
            "import os\nif os.fork() == 0: os.system('')\nwhile True: os.write(2, b'x' * 1000)",
        ],
    )
    def test_endless_output_ends(self, run: Run, source: str):
        assert run(source, output_bytes=1 << 20).status == "output"

    def test_memory_ends(self, run: Run):
        assert run("x = [0]\nwhile True: x += x").status == "memory"
        source = "for i in range(99): open(str(i), 'wb').write(bytes(1 << 20))"
        assert "No space left on device" in run(source, output_bytes=1 << 20).detail

    def test_a_fork_bomb_ends(self, run: Run, marked: str):
        source = marked + "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        assert run(source, "assert False", time_s=0.5).status in ("timeout", "failed")

    def test_few_processes_and_files_are_to_be_had(self, run: Run):
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
        assert run(source, "assert 2 <= started < 50", memory_bytes=4 << 30) == PASSED
        assert "Too many open files" in run("x = [open('/dev/null') for _ in range(80)]").detail


class TestLeftovers:
    def test_daemons_end_with_the_program(self, run: Run, marked: str):
        source = """
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
            time.sleep(0.1)
        """
        assert run(marked + "\n".join(line[12:] for line in source.splitlines())) == PASSED

    def test_no_process_and_no_folder_is_left(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        before = psutil.Process().children()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        run("import os\nfor _ in range(3): os.fork()\nopen('left', 'w').write('x')")
        assert list(tmp_path.iterdir()) == []
        assert psutil.Process().children() == before

    def test_an_evaluation_that_is_killed_leaves_no_program(self, run: Run, marked: str):
        source = marked + "import time; time.sleep(1000)"
        script = (
            "from ablations.sandbox.programs import run_program\n"
            f"run_program({source!r}, time_s=600, **{LIMITS})"
        )
        with subprocess.Popen([sys.executable, "-c", script]) as evaluation:
            try:
                wait_until(lambda: processes_marked(marked), running=evaluation)
            finally:
                evaluation.kill()
        wait_until(lambda: not processes_marked(marked))

    def test_programs_at_once_do_not_meet(self, run: Run):
        def square(number: int) -> str:
            source = f"import os\nassert os.listdir() == []\nopen('mine', 'w').write('{number}')"
            tests = f"assert open('mine').read() == '{number}'\nassert {number} % 3"
            return run(source, tests).status

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(square, range(18))) == ["failed", "passed", "passed"] * 6


class TestIsolation:
    def test_nothing_runs_where_nothing_holds_it(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("PATH", "/nowhere")
        programs.probe.cache_clear()
        with pytest.raises(InputError) as refused:
            run_program("x = 1", time_s=1, **LIMITS)
        assert refused.value.message == (
            "generated code cannot be isolated on this machine (there is no bwrap), so it is not "
            "run; install bubblewrap (bwrap 0.8 or newer) where Linux allows user namespaces, or "
            "use --code-isolation none if this container is the sandbox"
        )
        with code_isolation("none"):
            assert run_program("x = 1", tests="assert x == 1", time_s=1, **LIMITS) == PASSED
        programs.probe.cache_clear()

    def test_a_bwrap_that_fails_is_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho No permissions to create it >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        programs.probe.cache_clear()
        with pytest.raises(
            InputError, match=r"machine \(No permissions to create it\), so it is not run"
        ):
            programs.find_isolation()
        programs.probe.cache_clear()

    def test_without_isolation_the_limits_stay(self, marked: str):
        with code_isolation("none"):
            assert "WITHOUT ISOLATION" in programs.describe_isolation("none")
            source = marked + "import os\nos.fork()\nassert not os.environ\nwhile True: pass"
            assert run_program(source, time_s=0.5, **LIMITS).status == "timeout"
            source = "import os\nassert os.listdir() == []\nos._exit(0)"
            assert run_program(source, time_s=5, **LIMITS).status == "failed"
            assert run_program("x = 0", tests="assert x", time_s=5, **LIMITS).status == "failed"
        wait_until(lambda: not processes_marked(marked))
