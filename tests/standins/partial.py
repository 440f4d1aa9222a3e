"""A model of the hub as it is on this machine before any of its weights is."""

import shutil

from layerswap_method.hub.cache import BLOBS
from layerswap_method.hub.partial import create, list_of


def write_headers(folder, out):
    """Write a snapshot of a checkpoint that has all but its weights, and return its folder."""
    snapshot = out / "snapshots" / "commit"
    shutil.copytree(folder, snapshot, ignore=shutil.ignore_patterns("*.safetensors"))
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            length = 8 + int.from_bytes(opened.read(8), "little")
            opened.seek(0)
            header = opened.read(length)
        blob = out / BLOBS / file.name
        create(blob, file.stat().st_size)
        with blob.open("r+b") as opened:
            opened.write(header)
        list_of(blob).write_text(f"0 {length}\n")
        (snapshot / file.name).symlink_to(blob)
    return snapshot
