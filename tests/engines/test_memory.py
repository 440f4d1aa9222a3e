"""A swap on HF needs a few blocks of memory beside the model.

Measuring rows takes some ten MiB more, whatever the size of the model: its threads' blocks.
"""

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ablations.engines.live import LiveEvaluator
from tests.standins.fine_tunes import tune
from tests.standins.live_cells import OPTIONS
from tests.standins.merging import linear_recipe, merge_of, merge_of_folder, revert_recipe
from tests.standins.word_models import write_model

ROWS, WIDTH = 40_000, 256
LARGEST = 4 * ROWS * WIDTH
"""Bytes of either embedding: 39 MiB, most of the model."""


def write_wide(folder, seed):
    """Write a random float32 Llama that is nearly all vocabulary."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), WIDTH)
    sizes |= {"vocab_size": ROWS, "num_hidden_layers": 1, "max_position_embeddings": 64}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 8, "initializer_range": 0.02}
    return write_model(folder, seed, words=["w"], says_special=True, **sizes)


def memory(field):
    """Return a size from this process's status in bytes, such as VmHWM, the peak resident one."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


class Watch(threading.Thread):
    """Looks at this process's memory every millisecond, and remembers the most."""

    def __init__(self):
        super().__init__(daemon=True)
        ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps for itself hides a rise
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._done = threading.Event()
        self._most = self._before = memory("RssAnon")
        self._rss = memory("VmRSS")
        self.start()

    def run(self):
        while not self._done.wait(0.001):
            self._most = max(self._most, memory("RssAnon"))

    def end(self):
        peak = memory("VmHWM")
        self._done.set()
        self.join()
        return self._most - self._before, peak - self._rss  # how far it rose: anonymous, all


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch_dtype.*")
def test_swaps_that_change_everything(tmp_path):
    folders = [write_wide(tmp_path / str(seed), seed) for seed in range(3)]
    folders.append(tune(folders[0], tmp_path / "tuned", 3))
    # In a process of its own: what other tests have left behind may come and go meanwhile.
    command = [sys.executable, "-m", "tests.engines.test_memory", *map(str, folders)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    # In the first swap transformers maps the checkpoint; what is written becomes our own.
    _, *swaps = json.loads(ran.stdout.splitlines()[-1])
    for rises, tensors in zip(swaps, [0.5, 0.5, 1.0], strict=True):
        assert max(rises) < tensors * LARGEST


def main(folders):
    """Print how far memory rises with one averaged model after another, and one by its rows."""
    live = LiveEvaluator(Path(folders[0]), "hf", OPTIONS)
    live.swap(merge_of_folder(Path(folders[0])))
    base, other, third, tuned = folders
    averages = (linear_recipe([first, third]) for first in (base, other, base))
    swaps = []
    for document in (*averages, revert_recipe(tuned, base, {"keep_fraction": 0.5})):
        watch = Watch()
        live.swap(merge_of(document))
        swaps.append(watch.end())
    sys.stdout.write(json.dumps(swaps) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
