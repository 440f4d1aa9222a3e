"""What the process that runs a program gives up before it does: limits, calls, files.

Knows rlimits, seccomp and Landlock; not how a verdict is reached. All of it is inherited by every
child and cannot be undone.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ablations.sandbox import kernel
from ablations.sandbox.paths import DEVICES, readable_paths

MAX_PROCESSES = 16
"""Processes and threads of one program."""

_MAX_FILES = 64
_NOBODY = 65534

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED = {
    # No network, not even the sockets of this machine (a container engine listens on one).
    # socketpair stays: event loops need it, and it leads nowhere.
    "socket": (41, 198),
    "io_uring_setup": (425, 425),  # can open sockets by itself
    # Nobody else is signalled, and nobody leaves the group that is ended as a whole.
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    # No other process is read or written.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # No way out, and no corner of the kernel that a small program does not need.
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
"""System calls that fail with EPERM: (number on x86_64, on aarch64)."""

_TGKILL = (234, 131)

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000

_READ = 0b1101  # execute (map a library), read a file, read a folder
_READ_FILE, _WRITE_FILE = 0b0100, 0b0010


def limit_resources(cpu_s: int, memory_bytes: int, file_bytes: int, processes: int) -> None:
    """Set the limits of this process and of each of its children.

    Args:
        cpu_s: CPU seconds; a signal then, the end a second later.
        memory_bytes: address space of one process.
        file_bytes: size of one file.
        processes: processes and threads that this user may have; see `process_limit`.
    """
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_NOFILE, _MAX_FILES, _MAX_FILES),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def process_limit(*, own_user_namespace: bool) -> int:
    """Return what RLIMIT_NPROC must be for `MAX_PROCESSES`, seen from outside.

    A user namespace counts its own processes since Linux 5.14. Before, and without one, the
    limit is on all the user has on this machine, so what there is now is added.
    """
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if own_user_namespace and release >= (5, 14):
        return MAX_PROCESSES
    user = os.geteuid() or _NOBODY
    return MAX_PROCESSES + sum(_count_threads(each, user) for each in Path("/proc").iterdir())


def become_nobody(*, may_read_all: bool) -> None:
    """Stop being root, on whom neither limits nor file permissions are binding.

    Args:
        may_read_all: keep the right to pass over file permissions, for a Python in root's own
            folders; only where `restrict_files` follows.
    """
    if os.geteuid() != 0:
        return
    kernel.keep_capabilities()
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kernel.drop_capabilities(keep=kernel.CAP_DAC_OVERRIDE if may_read_all else None)


def give_to_nobody(folder: str) -> None:
    """Let `folder` belong to the user that `become_nobody` makes of this one."""
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)


def restrict_calls() -> None:
    """Install the seccomp filter: `_DENIED`, and signals to anything but this process.

    Raises:
        OSError: where the kernel has no seccomp, or numbers for this machine are not known here.
    """
    machine = kernel.architecture()
    if machine not in _AUDIT_ARCHITECTURE:
        raise OSError(f"no table of system calls for {machine}; known: x86_64, aarch64")
    column = ("x86_64", "aarch64").index(machine)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _DENY),
    ]
    for numbers in _DENIED.values():
        program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _DENY)]
    program += [
        # abort() and raise() are a tgkill to oneself.
        (_EQUAL, 0, 3, _TGKILL[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 1, 0, os.getpid()),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    kernel.install_filter(program)


def restrict_files(folder: str) -> bool:
    """Let files be read where Python lives and written in `folder` only (Landlock).

    Returns:
        Whether the kernel could do it (Linux 5.13 and later, if it is switched on).
    """
    version = kernel.landlock_version()
    if version == 0:
        return False
    # 13 rights in version 1; moving between folders came with 2, cutting files short with 3.
    handled = (1 << (13 + (version >= 2) + (version >= 3))) - 1
    allowed = {path: _READ if Path(path).is_dir() else _READ_FILE for path in readable_paths()}
    allowed |= {path: _READ_FILE | _WRITE_FILE for path in DEVICES if Path(path).exists()}
    kernel.restrict_paths(handled, allowed | {folder: handled})
    return True


def _count_threads(process: Path, user: int) -> int:
    try:
        if not process.name.isdigit() or process.stat().st_uid != user:
            return 0
        return sum(1 for _ in (process / "task").iterdir())
    except OSError:
        return 0  # it ended meanwhile
