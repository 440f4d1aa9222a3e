"""Claims are the kernel's: where it has none, nothing is claimed."""

import errno
import fcntl
import os

import pytest

from ablations.machine.locks import try_claim
from layerswap_method.errors import LayerSwapError


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_in_one_message(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    for _ in range(2):  # nothing that outlives its owner is left behind
        with pytest.raises(LayerSwapError, match="cannot lock files; choose an --out on a local"):
            try_claim(tmp_path, "w000")
    monkeypatch.undo()
    claim = try_claim(tmp_path, "w000")
    assert claim is not None
    claim.release()


def test_another_error_stays_what_it_is(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="No space left"):
        try_claim(tmp_path, "w000")
