"""A command of `layerswap` on a real terminal."""

import fcntl
import os
import pty
import struct
import sys
import termios
from contextlib import suppress

import psutil

from tests.waiting import wait_until


class Terminal:
    """A `layerswap` command on a terminal of 100 columns; ended with the block."""

    def __init__(self, *arguments):
        self._pid, self._screen = pty.fork()
        if not self._pid:
            code = "from ablations.cli import main; main(prog_name='layerswap')"
            os.execvp(sys.executable, [sys.executable, "-c", code, *arguments])
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        os.set_blocking(self._screen, False)
        self.process, self.code, self._bytes = psutil.Process(self._pid), None, b""

    @property
    def text(self):
        """What stands on the screen so far."""
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._screen, 65536):
                self._bytes += part
        return self._bytes.decode(errors="replace").replace("\r\n", "\n")

    def press_ctrl_c(self):
        os.write(self._screen, b"\x03")

    def has_ended(self):
        _ = self.text  # a full screen would hold it up
        if self.code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.has_ended():
            self.process.kill()
            wait_until(self.has_ended)
        os.close(self._screen)
