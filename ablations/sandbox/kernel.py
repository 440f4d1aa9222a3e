"""Calls into Linux that Python 3.11 has no function for. Knows numbers; decides nothing."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

CAP_DAC_OVERRIDE = 1

MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY_NOSUID = 0x3
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_MOUNT_SETATTR = 442  # the same on every architecture, as all numbers from 424 on
_LANDLOCK = {"create": 444, "add": 445, "restrict": 446}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jump_true", ctypes.c_uint8),
        ("jump_false", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def architecture() -> str:
    """Return the machine's name as the tables here have it (``x86_64``, ``aarch64``, ...)."""
    return os.uname().machine


def unshare(flags: int) -> None:
    """Leave the shared namespaces of `flags`. Raises OSError where the kernel forbids it."""
    _call("unshare", flags)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Attach what `source` names to `target`; flags and options are the manual page's."""
    texts = (source.encode(), target.encode(), kind.encode())
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode())


def make_tree_read_only(path: str) -> None:
    """Make every mount at and below `path` read-only (Linux 5.12 and later)."""
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY_NOSUID)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    where = (_AT_FDCWD, path.encode(), _AT_RECURSIVE)
    _system_call("mount_setattr", _MOUNT_SETATTR, *where, ctypes.byref(attributes), size)


def pivot_root_to(path: str) -> None:
    """Make `path` (a mount) the root, and let the old root go, so that nothing leads back."""
    os.chdir(path)
    _system_call("pivot_root", _PIVOT_ROOT[architecture()], b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def die_with_parent(signal_number: int) -> None:
    """Ask for a signal when the parent thread ends, however that ended."""
    _call("prctl", _PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal_number, 0, 0, 0)))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def forbid_new_privileges() -> None:
    """No setuid program will give this process or its children anything from now on."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def keep_capabilities() -> None:
    """Let the next change of user leave the capabilities as they are."""
    _call("prctl", _PR_SET_KEEPCAPS, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def drop_capabilities(keep: int | None = None) -> None:
    """Give up every capability of this process but `keep`, and the way to get one back."""
    for capability in range(64):
        try:
            _call("prctl", _PR_CAPBSET_DROP, *map(ctypes.c_ulong, (capability, 0, 0, 0)))
        except OSError:
            break  # past the last one that this kernel knows, or not allowed to
    kept = 0 if keep is None else 1 << keep
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable: first the low words, then the high ones.
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _system_call("capset", _CAPSET[architecture()], header, sets)


def install_filter(instructions: list[tuple[int, int, int, int]]) -> None:
    """Install a seccomp filter, for good; needs `forbid_new_privileges` first."""
    array = (_Instruction * len(instructions))(*(_Instruction(*each) for each in instructions))
    program = _FilterProgram(len(instructions), array)
    _call("prctl", _PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program))


def landlock_version() -> int:
    """Return Landlock's ABI version; 0 where the kernel has none."""
    try:
        return _system_call("landlock", _LANDLOCK["create"], None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0


def restrict_paths(handled: int, allowed: dict[str, int]) -> None:
    """Deny the file accesses `handled` (Landlock bits), but for `allowed`: path -> bits.

    Needs `forbid_new_privileges` first. Rights hold beneath a folder; paths must exist.
    """
    attributes = ctypes.c_uint64(handled)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    rules = _system_call("landlock", _LANDLOCK["create"], ctypes.byref(attributes), size, 0)
    for path, access in allowed.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = _PathBeneath(access, descriptor)
        _system_call("landlock", _LANDLOCK["add"], rules, 1, ctypes.byref(beneath), 0)
        os.close(descriptor)
    _system_call("landlock", _LANDLOCK["restrict"], rules, 0)
    os.close(rules)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> int:
    result = int(getattr(_libc(), name)(*arguments))
    if result < 0:
        _fail(name)
    return result


def _system_call(name: str, number: int, *arguments: Any) -> int:
    result = int(_libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        _fail(name)
    return result


def _fail(name: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{name}: {os.strerror(number)}")
