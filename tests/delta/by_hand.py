"""Deltas computed anew: safetensors by hand, numpy, float64. Imports nothing of the project."""

import json
import re
import struct

import numpy as np

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def read(folder):
    """Return every tensor of a checkpoint as float64."""
    tensors = {}
    files = sorted(folder.glob("*.safetensors"))
    assert files
    for file in files:
        raw = file.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            data = raw[8 + length + first : 8 + length + last]
            if entry["dtype"] == "BF16":  # the upper half of a float32
                halves = np.frombuffer(data, "<u2").astype(np.uint32) << 16
                values = halves.view(np.float32)
            else:
                values = np.frombuffer(data, NUMPY[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def rows(name, delta, family):
    """Return the MAV of every input feature: the mean over the outputs, by how each is stored."""
    magnitude = np.abs(delta)
    if delta.ndim == 1:
        return magnitude.mean(keepdims=True)
    if family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
        return magnitude.mean(axis=1)  # [in, out]
    if family == "gpt_oss" and "experts" in name:
        return magnitude.mean(axis=-1).ravel()  # [experts, in, out], and a bias an expert
    return magnitude.mean(axis=0).ravel()  # [out, in], [out, channels, height, width]


def statistics(name, expert, base, family, threshold):
    """Return what `delta.csv` says of one tensor."""
    delta = expert - base
    mav = rows(name, delta, family)
    norms = [float(np.sqrt((values**2).sum())) for values in (delta, base)]
    found = {
        "rows": mav.size,
        "mav": mav.mean(),
        "mav_max": mav.max(),
        "share_above": (mav > threshold).mean(),
        "share_changed": (delta != 0).mean(),
    }
    if norms[1] > 0:
        found["relative_norm"] = norms[0] / norms[1]
    return {key: float(value) for key, value in found.items()}
