"""The one place that imports ray: workers on the nodes of a cluster, which share the run folder."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from ablations.machine.lifetime import take_descendants_along
from ablations.machine.progress import Step, show_step
from ablations.runner.jobs import Board
from ablations.runner.work import Job
from ablations.runner.worker import evaluate_claimed
from ablations.runs.records import RUN_FILE
from layerswap_method.errors import InputError, LayerSwapError, first_line

logger = logging.getLogger(__name__)

_POLL_S, _ANSWER_S, _GRACE_S = 0.5, 10.0, 60.0
"""Between two looks; for an address to answer; for idle workers to end after the last task."""


def _work(job: Job) -> None:
    if not (job.out / RUN_FILE).is_file():
        raise InputError(
            f"{job.out}: does not exist on {socket.gethostname()}; choose an --out that all nodes "
            "of the cluster share"
        )
    take_descendants_along()
    evaluate_claimed(job)


def on_cluster(job: Job, board: Board, *, address: str, jobs: int | None, gpus: int) -> None:
    """Work on a Ray cluster, in a folder that all nodes share.

    Args:
        job: what to do.
        board: looks now and then.
        address: of the cluster; ``auto`` finds one on this machine or in ``RAY_ADDRESS``.
        jobs: most workers; None for as many as the GPUs allow (without GPUs: one per node).
        gpus: that one of them takes; on a cluster without GPUs it takes a processor slot.

    Raises:
        InputError: where ray is not installed, no cluster answers, or a node lacks the folder.
        LayerSwapError: where workers end again and again before they have begun.
    """
    ray = _connected(address)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(int(node.get("GPU", 0)) // gpus for node in nodes)
    spread = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
    needs = {"num_cpus": 0, "num_gpus": gpus} if room else spread
    count = jobs or room or sum(node.get("CPU", 0) >= 1 for node in nodes) or 1
    # A process per worker: an engine leaves nothing behind for the next one.
    remote = ray.remote(max_calls=1, max_retries=0)(_work).options(**needs)
    workers = {remote.remote(job) for _ in range(count)}
    spare = len({cell.weights_key for cell in job.cells}) + count
    show_step(Step("starting engines on the cluster"))
    try:
        while workers:
            ended, _ = ray.wait([*workers], timeout=_GRACE_S if board.has_ended else _POLL_S)
            if board.has_ended and not ended:
                return
            board.look()
            for worker in ended:
                workers.remove(worker)
                try:
                    ray.get(worker)
                except ray.exceptions.RayTaskError as error:  # it has raised: so would another
                    raise error.as_instanceof_cause() from error
                except ray.exceptions.RayError as error:
                    why = first_line(error)
                    if not spare:
                        raise LayerSwapError(f"no engine can be started: {why}") from error
                    logger.warning("  a worker went away (%s)", why)
                    spare -= 1
                    workers.add(remote.remote(job))
    finally:
        for worker in workers:
            ray.cancel(worker, force=True)
        ray.shutdown()


def _connected(address: str) -> Any:
    """Return ray, connected; it would try an address where nobody listens for minutes."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        from ray._private.services import get_ray_address_from_environment
    except ImportError as error:
        raise InputError("ray is not installed: pip install 'layerswap[ray]'") from error
    path = [p for p in sys.path if p and not p.startswith((sys.prefix, sys.base_prefix))]
    env = {"env_vars": {"PYTHONPATH": os.pathsep.join(path)}}
    place = address
    try:
        if address == "auto":  # may be a file of Ray's that names a cluster of the past
            place = str(get_ray_address_from_environment(address, None))
        host, _, port = place.rpartition(":")
        if host and port.isdigit() and "/" not in place:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=env)
    except (OSError, OverflowError, ValueError) as error:
        advice = "start one with ray start --head, or say where: --address HOST:6379"
        why = first_line(error)
        raise InputError(f"no Ray cluster at {place!r} ({why}); {advice}") from error
    return ray
