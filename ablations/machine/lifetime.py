"""How long a worker process and what it has started live. Knows processes; not what they do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

_WARDEN = """
import os, signal, sys, time
ward = int(sys.argv[1])
while os.getppid() == ward:
    time.sleep(0.2)
try:
    os.killpg(ward, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def end_with_parent() -> None:
    """End this process when its parent is gone, however that ended: nothing works for nobody."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def take_descendants_along() -> None:
    """Have everything that this process starts from now on end with it, SIGKILL included.

    vLLM's engine process, for one, does not notice that whoever started it is gone, and would
    hold its GPU for nobody. This process gets a process group of its own (so the terminal's
    Ctrl-C no longer reaches it) and a small warden outside of it, which kills what is left of the
    group when this process is gone.
    """
    os.setpgrp()
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WARDEN, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
