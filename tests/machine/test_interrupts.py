import importlib
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations.machine.interrupts import heeding_interrupts

PRESSED = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
SWALLOWED = (
    "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    "
)


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """A shell's background jobs, and what they start, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("passed_on", PRESSED),
        ("swallowed", f"{SWALLOWED}pass\n"),
        ("made_another", f"{SWALLOWED}raise ImportError('no such library')\n"),
    ],
)
def test_ctrl_c_in_an_import_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), heeding_interrupts():
        importlib.import_module(name)
    sys.modules.pop(name, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_weak_references_callback_is_not_lost() -> None:
    class Lock:
        """As that of an import, which is called back when it is gone."""

    lock = Lock()
    called = []

    def call_back(_: object) -> None:
        called.append(True)
        signal.raise_signal(signal.SIGINT)

    kept = weakref.ref(lock, call_back)
    with pytest.raises(KeyboardInterrupt), heeding_interrupts():
        del lock  # the next line would run: Python drops what is raised in the call
    assert called == [True]
    assert kept() is None


def test_other_errors_and_other_handlers_stay() -> None:
    with pytest.raises(ValueError, match="mine"), heeding_interrupts():
        raise ValueError("mine")
    pressed = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        with heeding_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]


def test_a_thread_beside_the_main_one_may_use_it() -> None:
    done = []

    def work() -> None:
        with heeding_interrupts():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
