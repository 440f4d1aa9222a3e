"""A world of its own for a process tree: no network, no other processes, no other files.

Knows namespaces and mounts; not what runs inside. Works for any user where the kernel lets users
make user namespaces, and for root.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from ablations.sandbox import kernel
from ablations.sandbox.paths import DEVICES, readable_paths

WORK = "/work"
"""The empty working folder inside; it ends with the namespace."""

_NOBODY = 65534
_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWPID
)


class Readable(NamedTuple):
    """A file or folder that stays visible."""

    path: Path
    descriptor: int
    is_dir: bool
    link: Path | None

    @classmethod
    def open(cls, path: Path) -> Readable:
        """Open `path` to be shown elsewhere; nothing is read."""
        link = path.readlink() if path.is_symlink() else None
        return cls(path, os.open(path, os.O_PATH), path.is_dir(), link)


def leave_shared_namespaces() -> list[Readable]:
    """Move this process into new user, network, mount and IPC namespaces.

    Children (not this process) are in a new process namespace as well: when the first of them
    ends, the kernel ends every other, daemons too. Inside, the user is 0 of the new namespace;
    outside it is the caller, or nobody if that is root, so that no file of root's is its own.

    Returns:
        What a program may read, opened while this process still may: root's Python can stand in a
        folder that nobody else may enter.

    Raises:
        OSError: where the kernel, a container or its policy forbids that.
    """
    is_root = os.geteuid() == 0
    outside = (_NOBODY, _NOBODY) if is_root else (os.geteuid(), os.getegid())
    asked, tell = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        # Only a process outside may give another user's number, so a child stays behind for it.
        os.close(tell)
        _run_and_exit(lambda: _write_maps(asked, os.getppid(), outside, is_root))
    os.close(asked)
    try:
        kernel.unshare(_NAMESPACES)
        os.write(tell, b"!")
    finally:
        # Without a word before it, this lets the mapper go.
        os.close(tell)
        _, status = os.waitpid(mapper, 0)
    if status != 0:
        raise PermissionError("the user map of the new namespace could not be written")
    readable = [Readable.open(Path(path)) for path in (*readable_paths(), *DEVICES)]
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return readable


def enter_new_root(readable: list[Readable], mount_point: str, folder_bytes: int) -> None:
    """Leave the file system for one with a read-only Python and an empty `WORK`; go there.

    Args:
        readable: what `leave_shared_namespaces` returned.
        mount_point: any existing folder; it is hidden inside, and untouched outside.
        folder_bytes: how much fits into `WORK`.

    Raises:
        OSError: when the kernel is older than Linux 5.12 or forbids it.
    """
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    root = Path(mount_point)
    small = "size=1m,nr_inodes=1k,mode=755"
    kernel.mount("tmpfs", mount_point, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, small)
    os.umask(0o022)
    for each in readable:
        _bind(each, root / str(each.path).lstrip("/"))
    work = root / WORK.lstrip("/")
    work.mkdir()
    kernel.make_tree_read_only(mount_point)
    limits = f"size={folder_bytes},nr_inodes=4k,mode=755"
    kernel.mount("tmpfs", str(work), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, limits)
    kernel.pivot_root_to(mount_point)
    os.chdir(WORK)


def _write_maps(asked: int, pid: int, outside: tuple[int, int], is_root: bool) -> None:
    if not os.read(asked, 1):
        return
    process = Path(f"/proc/{pid}")
    if not is_root:
        (process / "setgroups").write_text("deny", encoding="ascii")
    (process / "uid_map").write_text(f"0 {outside[0]} 1", encoding="ascii")
    (process / "gid_map").write_text(f"0 {outside[1]} 1", encoding="ascii")


def _run_and_exit(action: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        action()
        code = 0
    finally:
        os._exit(code)


def _bind(readable: Readable, target: Path) -> None:
    """Show it at `target`; a link (``/lib`` of a merged ``/usr``) stays that link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if readable.link is not None:
        target.symlink_to(readable.link)
        return
    if readable.is_dir:
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    source = f"/proc/self/fd/{readable.descriptor}"
    kernel.mount(source, str(target), "none", kernel.MS_BIND | kernel.MS_REC)
