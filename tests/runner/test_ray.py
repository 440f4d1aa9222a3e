"""A real Ray cluster of several nodes on this machine, and one that is killed mid-study."""

import importlib.util
import threading
from pathlib import Path

import pytest

from ablations.machine.progress import Step, listening
from ablations.runner.loop import run_cells
from layerswap_method.errors import InputError
from tests.runner.fakes import (
    ITEMS,
    TASK,
    FakeEvaluator,
    InProcess,
    key_of,
    make_cells,
    scores_on_disk,
)
from tests.waiting import wait_until

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
COUNT = 24
LABELS = {cell.label for cell in make_cells(4)}


@pytest.fixture
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


@needs_ray
@pytest.mark.slow
def test_a_killed_node_costs_no_cell_and_changes_no_record(tmp_path: Path, cluster) -> None:
    from ablations.runner.ray_executor import RayExecutor

    out, journal = tmp_path / "run", tmp_path / "journal"
    cells = make_cells(COUNT)
    executor = RayExecutor(
        FakeEvaluator(delay_s=0.5, journal=journal, company=3), address=cluster.address, jobs=3
    )

    def kill_a_node() -> None:
        wait_until(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 5)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    try:
        summary = run_cells(out, cells, executor, progress=False)
    finally:
        killer.join()
        executor.close()
    assert not summary.failed
    assert sorted(summary.evaluated) == sorted(cell.label for cell in cells)  # each once
    lines = [line.split() for line in journal.read_text().splitlines()]
    begun = [key for key, _ in lines]
    assert set(begun) == {key_of(index) for index in range(COUNT)}
    assert COUNT <= len(begun) <= COUNT + 1  # at most the one that was under way began again
    assert len({pid for _, pid in lines}) in (3, 4)  # actors keep their engine
    run_cells(tmp_path / "local", cells, InProcess(FakeEvaluator()), progress=False)
    assert scores_on_disk(out) == scores_on_disk(tmp_path / "local")
    assert not list(out.glob("failures/*"))


@needs_ray
@pytest.mark.slow
def test_a_failed_cell_is_no_lost_one_and_progress_is_told(tmp_path: Path, cluster) -> None:
    from ablations.runner.ray_executor import RayExecutor

    cells = make_cells(4)
    evaluator = FakeEvaluator(
        raising=("bottom_layers=1",), journal=tmp_path / "journal", delay_s=6, company=2
    )
    executor = RayExecutor(evaluator, address=cluster.address, jobs=2)
    steps = list[Step]()
    try:
        with listening(steps.append):
            summary = run_cells(tmp_path / "run", cells, executor, progress=False)
    finally:
        executor.close()
    assert list(summary.failed) == ["bottom_layers=1"]
    assert len((tmp_path / "journal").read_text().splitlines()) == 4  # it was not tried again
    inside = [step for step in steps if step.done > 0 and step.unit == "items"]
    assert {step.what for step in inside} & {TASK, "2 tasks at once"}
    assert any(step.total == ITEMS and step.where in LABELS for step in inside) or any(
        step.total == 2 * ITEMS for step in inside
    )
    assert steps[0].is_whole
    assert Step("starting an engine on the cluster") in steps


@needs_ray
def test_a_file_of_rays_that_names_a_dead_cluster_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    from ablations.runner.ray_executor import RayExecutor

    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)  # clusters of others on this machine
    with pytest.raises(InputError, match=r"at '127\.0\.0\.1:1' .*refused.*--address HOST:6379"):
        RayExecutor(FakeEvaluator())


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:70000"])
def test_an_address_where_nobody_listens_is_said_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablations.runner.ray_executor import RayExecutor

    with pytest.raises(InputError, match=r"no Ray cluster at .*:\d+.*--address HOST:6379"):
        RayExecutor(FakeEvaluator(), address=address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match="no Ray cluster at"):
        RayExecutor(FakeEvaluator())
