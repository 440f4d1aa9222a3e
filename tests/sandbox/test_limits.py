"""A program that asks for too much, or will not end, is ended with all it has started."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ablations.sandbox.programs import Isolation, ProgramResult
from tests.sandbox.conftest import (
    Run,
    children,
    name_of,
    processes_named,
)
from tests.waiting import wait_until


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
            "from ablations.sandbox.programs import Isolation, run_program\n"
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
