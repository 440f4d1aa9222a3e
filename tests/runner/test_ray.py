"""A real Ray cluster of several nodes on this machine, and one that is killed mid-study."""

import functools
import importlib.util
import os
import re
import threading

import pytest

from ablations.machine.progress import Step, listening
from ablations.runner.jobs import Board
from ablations.runner.ray_jobs import on_cluster
from ablations.runner.work import Job
from ablations.runs.records import RUN_FILE
from layerswap_method.errors import InputError, LayerSwapError
from tests.runner.fakes import (
    RAISES,
    FakeEngine,
    journal_of,
    key_of,
    make_cells,
    run,
    scores_on_disk,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
COUNT = 24


@pytest.fixture(scope="module")
def cluster():
    """Yield a head without room for actors and three worker nodes with room for one each."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        made.add_node(num_cpus=1)
    made.wait_for_nodes(timeout=600)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def out(tmp_path):
    """Return a run folder as nodes look for it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).touch()
    return tmp_path / "run"


def on(cluster, jobs):
    return functools.partial(on_cluster, address=cluster.address, jobs=jobs, gpus=1)


@pytest.mark.slow
def test_a_killed_node_costs_the_model_that_it_held(tmp_path, out, cluster):
    cells, journal = make_cells(COUNT), tmp_path / "journal"
    engine = FakeEngine(delay_s=0.5, journal=journal, company=3)

    def kill_a_node():
        wait_until(lambda: journal.exists() and len(journal_of(journal)) >= 5)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    try:
        summary = run(out, cells, engine, start=on(cluster, 3))
    finally:
        killer.join()
    begun = journal_of(journal)
    assert sorted(key for key, _ in begun) == [key_of(index) for index in range(COUNT)]
    assert len({process for _, process in begun}) in (3, 4)  # workers keep their engine
    assert len(summary.failed) <= 1  # none, where it was killed between two models
    assert all("was killed while it worked" in error for error in summary.failed.values())
    assert len(summary.evaluated) == COUNT - len(summary.failed)
    assert run(out, cells).evaluated == list(summary.failed)
    run(tmp_path / "local", cells)
    assert scores_on_disk(out) == scores_on_disk(tmp_path / "local")


@pytest.mark.slow
def test_a_failed_cell_is_not_tried_again_and_progress_is_told(tmp_path, out, cluster):
    journal, raising = tmp_path / "journal", {"bottom_layers=1": RAISES}
    engine, steps = FakeEngine(raising=raising, journal=journal, company=2), []
    with listening(steps.append):
        summary = run(out, make_cells(4), engine, start=on(cluster, 2))
    assert list(summary.failed) == ["bottom_layers=1"]
    assert len(journal_of(journal)) == 4
    assert [steps[0].done, steps[-1].done] == [0, 4]
    assert Step("starting engines on the cluster") in steps


@pytest.mark.slow
def test_a_folder_that_a_node_does_not_see_is_said(tmp_path, cluster):
    with pytest.raises(InputError, match="choose an --out that all nodes of the cluster share"):
        run(tmp_path, make_cells(1), start=on(cluster, 1))


class EndsItsWorker(FakeEngine):
    """An engine at whose sight a worker's process ends, as one that a driver does not fit."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.slow
def test_workers_that_end_before_they_begin_are_not_replaced_for_ever(out, cluster):
    with pytest.raises(LayerSwapError, match="no engine can be started: "):
        run(out, make_cells(1), EndsItsWorker(), start=on(cluster, 1))


@pytest.mark.parametrize("place", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:70000"])
@pytest.mark.parametrize("source", ["option", "environment", "file"])
def test_an_address_where_nobody_listens_is_said_at_once(tmp_path, monkeypatch, place, source):
    from ray._private import services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if source == "environment":
        monkeypatch.setenv("RAY_ADDRESS", place)
    if source == "file":  # of a cluster that was
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(place)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.setattr(services, "find_gcs_addresses", set)  # clusters of others here
    job = Job(tmp_path, make_cells(1), FakeEngine(), "call")
    address = place if source == "option" else "auto"
    with pytest.raises(InputError, match=re.escape(f"no Ray cluster at {place!r}")):
        on_cluster(job, Board(job), address=address, jobs=1, gpus=1)
