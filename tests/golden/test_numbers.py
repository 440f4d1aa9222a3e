"""Merged tensors and scores are those that belong to METHOD_VERSION and SCORING_VERSION."""

import json

import pytest

from tests.golden.merges import merge_digests
from tests.golden.numbers import COMMAND, FILE, VERSIONS, changed, current
from tests.standins.merging import by_mergekit

STORED = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", VERSIONS)
def test_a_changed_number_needs_a_raised_version(name):
    if name == "SCORING_VERSION":
        pytest.importorskip("py3langid")
    known, now = STORED[name], current(name)
    assert len(set(map(str, known["numbers"].values()))) > 10
    assert not changed(known, now), f"raise {name} and run {COMMAND}"
    assert (known["version"], [*known["numbers"]]) == (now["version"], [*now["numbers"]]), COMMAND


def test_mergekits_executor_makes_the_same_numbers(tmp_path):
    found = dict(merge_digests(tmp_path, by_mergekit))
    assert not changed(STORED["METHOD_VERSION"], {"numbers": found})
