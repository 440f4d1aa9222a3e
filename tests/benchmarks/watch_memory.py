"""How far this process's memory rises while something is done. Knows Linux's /proc only."""

import ctypes
import threading
from pathlib import Path


def memory(field):
    """Return a size from this process's status in bytes, such as VmHWM, the peak resident one."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not tell a process its {field}")


class Watch(threading.Thread):
    """Looks at this process's memory while something is done, and remembers the most."""

    def __init__(self):
        """Let the kernel's peak begin anew, and begin to look."""
        super().__init__(daemon=True)
        ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps for itself hides a rise
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._done = threading.Event()
        self.anonymous = self.anonymous_before = memory("RssAnon")
        self.before = memory("VmRSS")
        self.start()

    def run(self):
        """Look every millisecond."""
        while not self._done.wait(0.001):
            self.anonymous = max(self.anonymous, memory("RssAnon"))

    def end(self):
        """Stop looking; return how far memory rose."""
        peak = memory("VmHWM")
        self._done.set()
        self.join()
        return {
            "rss_before_bytes": self.before,
            "rss_rise_bytes": peak - self.before,
            "anonymous_rise_bytes": self.anonymous - self.anonymous_before,
        }
