"""A search on a real Ray cluster of this machine: the same rounds and the same answer."""

import importlib.util

import pytest

from ablations.runner.run import RunOptions
from ablations.search.run import run_search
from tests.runner.fakes import scores_on_disk
from tests.search.searches import write_models, write_words_search


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_a_search_on_a_cluster_is_that_of_one_machine(tmp_path):
    import ray
    from ray.cluster_utils import Cluster

    study, experts = write_words_search(tmp_path, write_models(tmp_path))
    options = {"experts": str(experts), "backend": "hf"}
    here = run_search(str(study), RunOptions(out=tmp_path / "here" / "out", **options))
    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        options |= {"executor": "ray", "address": cluster.address, "jobs": 2}
        there = run_search(str(study), RunOptions(out=tmp_path / "there" / "out", **options))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert there.rounds.equals(here.rounds)
    assert str(there) == str(here)
    for name in ("round_1", "round_2", "held_out"):
        assert scores_on_disk(there.folder / name) == scores_on_disk(here.folder / name)
