"""What is outside of the sandbox is out of reach; where nothing holds, nothing is run."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ablations.sandbox import programs as sandbox
from ablations.sandbox.programs import Isolation, ProgramResult, run_program
from layerswap_method.errors import InputError, LayerSwapError
from tests.sandbox.conftest import (
    NAMESPACES,
    Run,
    run_in,
    something_else,
)


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
            "import ctypes; from ablations.sandbox import kernel, restrictions\n"
            "from ablations.sandbox import programs as sandbox\n"
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
