"""A real Ray cluster of several nodes on this machine, and one that is killed mid-study."""

import functools
import importlib.util
import re
import threading
from pathlib import Path

import pytest

from ablations.machine.progress import Step, listening
from ablations.runner.board import Board
from ablations.runner.jobs import run_cells
from ablations.runner.records import RUN_FILE
from ablations.runner.work import Job
from layerswap_method.errors import InputError
from tests.runner.fakes import (
    FakeEvaluator,
    key_of,
    make_cells,
    scores_on_disk,
)
from tests.waiting import wait_until

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
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


def start(cluster, jobs: int):
    from ablations.runner.ray_jobs import on_cluster

    return functools.partial(on_cluster, address=cluster.address, jobs=jobs, gpus=1)


def run_folder(tmp_path: Path) -> Path:
    """Return a run folder as nodes look for it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).touch()
    return tmp_path / "run"


@needs_ray
@pytest.mark.slow
def test_a_killed_node_costs_the_model_that_it_held(tmp_path: Path, cluster) -> None:
    out, journal = run_folder(tmp_path), tmp_path / "journal"
    cells = make_cells(COUNT)
    evaluator = FakeEvaluator(delay_s=0.5, journal=journal, company=3)

    def kill_a_node() -> None:
        wait_until(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 5)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    try:
        summary = run_cells(out, cells, evaluator, progress=False, start=start(cluster, 3))
    finally:
        killer.join()
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [key_of(index) for index in range(COUNT)]
    assert len({pid for _, pid in lines}) in (3, 4)  # workers keep their engine
    assert len(summary.failed) <= 1  # none, where it was killed between two models
    assert all("was killed while it worked" in error for error in summary.failed.values())
    assert len(summary.evaluated) == COUNT - len(summary.failed)
    again = run_cells(out, cells, FakeEvaluator(), progress=False)
    assert again.evaluated == list(summary.failed)
    run_cells(tmp_path / "local", cells, FakeEvaluator(), progress=False)
    assert scores_on_disk(out) == scores_on_disk(tmp_path / "local")


@needs_ray
@pytest.mark.slow
def test_a_failed_cell_is_not_tried_again_and_progress_is_told(tmp_path: Path, cluster) -> None:
    evaluator = FakeEvaluator(raising=("bottom_layers=1",), journal=tmp_path / "journal", company=2)
    steps = list[Step]()
    cells, out = make_cells(4), run_folder(tmp_path)
    with listening(steps.append):
        summary = run_cells(out, cells, evaluator, progress=False, start=start(cluster, 2))
    assert list(summary.failed) == ["bottom_layers=1"]
    assert len((tmp_path / "journal").read_text().splitlines()) == 4
    assert [steps[0].done, steps[-1].done] == [0, 4]
    assert Step("starting engines on the cluster") in steps


@needs_ray
@pytest.mark.slow
def test_a_folder_that_a_node_does_not_see_is_said(tmp_path: Path, cluster) -> None:
    with pytest.raises(InputError, match="choose an --out that all nodes of the cluster share"):
        run_cells(tmp_path, make_cells(1), FakeEvaluator(), start=start(cluster, 1))


@needs_ray
@pytest.mark.parametrize("place", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:70000"])
@pytest.mark.parametrize("said_by", ["option", "environment", "file"])
def test_an_address_where_nobody_listens_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said_by: str
) -> None:
    from ray._private import services

    from ablations.runner.ray_jobs import on_cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if said_by == "environment":
        monkeypatch.setenv("RAY_ADDRESS", place)
    if said_by == "file":  # of a cluster that was
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(place)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.setattr(services, "find_gcs_addresses", set)  # clusters of others here
    job = Job(tmp_path, make_cells(1), FakeEvaluator(), "call")
    address = place if said_by == "option" else "auto"
    with pytest.raises(InputError, match=re.escape(f"no Ray cluster at {place!r}")):
        on_cluster(job, Board(job), address=address, jobs=1, gpus=1)
