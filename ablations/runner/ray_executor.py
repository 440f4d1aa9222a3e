"""The one place that imports ray: cells as work for actors on a Ray cluster. Knows no study.

One actor is one engine on one GPU (`num_gpus=1`) for as long as it lives; on a cluster without
GPUs it is one engine on `cpus` processor slots. Actors only compute: records are written by the
driver, so a node that goes away leaves nothing half written, and its cell is begun elsewhere.
How far an item is, its actor tells a board on the driver's node, if the driver shows it to anybody.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.machine.progress import Step, is_heard, listening, now_and_then, tell, together
from ablations.runner.work import Doubt, Failed, Outcome, Work, WorkEvaluator, attempt
from layerswap_method.errors import InputError, first_line

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_ANSWER_S = 10.0
_TELL_S = 1.0
"""How often an actor tells how far its item is."""

HOW_TO_INSTALL = "pip install 'layerswap[ray]'"


@dataclass
class _Actor:
    handle: Any
    pending: Any
    """Reference to what it is about: its start, or an item."""

    work: Work | None = None
    """The item; None while it starts or is idle."""

    last: str = ""
    """Of the weights that its evaluator holds."""

    ready: bool = False
    """Whether it has started. An actor that the cluster has no room for yet gets no item."""


class _Board:
    """What lives in a small actor of its own: how far the items are."""

    def __init__(self) -> None:
        self._steps = dict[str, tuple[str, Step]]()

    def write(self, actor: str, score_key: str, step: Step) -> None:
        self._steps[actor] = (score_key, step)

    def read(self) -> dict[str, Step]:
        """Return score key -> step."""
        return dict(self._steps.values())


class _Engine:
    """What lives in the actor: an evaluator that keeps its engine."""

    def __init__(self, factory: Callable[[], WorkEvaluator], board: Any):
        self._evaluator = factory()
        self._board = board
        self._name = uuid.uuid4().hex

    def start(self) -> None:
        """Answer, which an actor does when it runs."""

    def evaluate(self, work: Work) -> Outcome:
        if self._board is None:
            return attempt(self._evaluator, work)

        def write(step: Step) -> None:
            self._board.write.remote(self._name, work.score_key, step)

        with listening(now_and_then(write, _TELL_S)):
            return attempt(self._evaluator, work)

    def check(self) -> Doubt | None:
        return self._evaluator.check(None)


class RayExecutor:
    """Runs items on a Ray cluster, at most one an actor at a time."""

    def __init__(
        self,
        factory: Callable[[], WorkEvaluator],
        *,
        address: str = "auto",
        jobs: int | None = None,
        cpus: float = 1,
    ):
        """Connect to the cluster; actors start with their first item.

        Args:
            factory: makes the evaluator in the actor; picklable.
            address: of the cluster; ``auto`` finds one on this machine or in ``RAY_ADDRESS``.
            jobs: actors at most; None for one a GPU (on a cluster without: one a node).
            cpus: processor slots of an actor on a cluster without GPUs.

        Raises:
            InputError: where ray is not installed or no cluster answers.
        """
        if importlib.util.find_spec("ray") is None:
            raise InputError(f"ray is not installed; install it with: {HOW_TO_INSTALL}")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            try:
                _check_answers(address, _resolved(address))
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, **_runtime()
                )
            except (ConnectionError, ValueError) as error:
                raise _no_cluster(address, first_line(error)) from error
        self._factory = factory
        self._jobs = jobs
        self._cpus = cpus
        self._actors: list[_Actor] = []
        self._queue: list[Work] = []
        self._board: Any = None
        self._read: Any = None
        """Reference to what the board says, when it has been asked."""

    @property
    def slots(self) -> int:
        """Actors that the cluster as it is now has room for, at most `jobs`."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(int(node.get("GPU", 0)) for node in nodes)
        if not room:
            per_node = [int(node.get("CPU", 0) / self._cpus) for node in nodes]
            room = sum(min(count, 1) if self._jobs is None else count for count in per_node)
        return max(1, room if self._jobs is None else min(room, self._jobs))

    def submit(self, work: Work) -> None:
        """Queue the item for the next idle actor, starting one if there may be more."""
        self._queue.append(work)
        self._dispatch()

    def collect(self) -> Sequence[tuple[Work, Outcome]]:
        """Return what actors have finished, and as lost the items of those that are gone."""
        busy = {each.pending: each for each in self._actors if each.pending is not None}
        ready, _ = self._ray.wait(list(busy), num_returns=1, timeout=_POLL_S)
        ended = []
        for reference in ready:
            actor = busy[reference]
            work, actor.work, actor.pending = actor.work, None, None
            try:
                outcome = self._ray.get(reference)
                actor.ready = True
            except self._ray.exceptions.RayError as error:
                self._actors.remove(actor)
                reason = f"its node or its actor went away ({first_line(error)})"
                outcome = Failed(reason, lost=True)
            if work is not None:
                ended.append((work, outcome))
        self._dispatch()
        self._tell()
        return ended

    def _tell(self) -> None:
        """Tell how far the items are, as far as the board has answered; waits for nothing."""
        if self._board is None:
            return
        busy = {each.work.score_key: each.work for each in self._actors if each.work is not None}
        if not busy:
            tell(Step("starting an engine on the cluster"))
        if self._read is None:
            self._read = self._board.read.remote()
        ready, _ = self._ray.wait([self._read], timeout=0)
        if not ready:
            return
        answer, self._read = self._read, None
        with contextlib.suppress(self._ray.exceptions.RayError):  # then nothing is shown
            steps = self._ray.get(answer)
            shown = {busy[key].label: step for key, step in steps.items() if key in busy}
            if shown:
                tell(together(shown))

    def _dispatch(self) -> None:
        idle = [actor for actor in self._actors if actor.ready and actor.pending is None]
        while self._queue and idle:
            work = self._queue.pop(0)
            actor = next((each for each in idle if each.last == work.weights_key), idle[0])
            idle.remove(actor)
            actor.work, actor.last = work, work.weights_key
            actor.pending = actor.handle.evaluate.remote(work)
        starting = sum(not actor.ready for actor in self._actors)
        for _ in range(min(len(self._queue) - starting, self.slots - len(self._actors))):
            handle = self._start()
            self._actors.append(_Actor(handle, handle.start.remote()))

    def settle(self) -> Sequence[Doubt]:
        """Have the engine of every actor checked; one that went away has nothing to say."""
        tell(Step("checking the engines on the cluster"))
        found = []
        for actor in self._actors:
            if actor.ready and actor.pending is None:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    found.append(self._ray.get(actor.handle.check.remote()))
        return [doubt for doubt in found if doubt is not None]

    def close(self) -> None:
        """End the actors; leave the cluster as it was."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._actors.clear()
        if self._board is not None:
            self._ray.kill(self._board)
            self._board = self._read = None
        if self._connected_here:
            self._ray.shutdown()

    def _start(self) -> Any:
        has_gpu = any(node["Resources"].get("GPU") for node in self._ray.nodes() if node["Alive"])
        needs = {"num_gpus": 1} if has_gpu else {"num_cpus": self._cpus}
        spread = "DEFAULT" if has_gpu else "SPREAD"
        if self._board is None and is_heard():
            self._board = self._start_board()
        remote = self._ray.remote(_Engine)
        # The driver begins a lost item again by itself: it knows which one it was.
        options = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": spread}
        return remote.options(**needs, **options).remote(self._factory, self._board)

    def _start_board(self) -> Any:
        """Start the board on this node, which is there as long as somebody looks at it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = self._ray.get_runtime_context().get_node_id()
        place = NodeAffinitySchedulingStrategy(here, soft=True)
        remote = self._ray.remote(_Board)
        return remote.options(num_cpus=0, scheduling_strategy=place).remote()


def _resolved(address: str) -> str:
    """Return where Ray will look for the cluster.

    ``auto`` is ``RAY_ADDRESS``, else a cluster that runs here, else the last one that was started
    here, which Ray keeps in a file (``/tmp/ray/ray_current_cluster``) when it has long ended.

    Raises:
        ConnectionError: where ``auto`` is none of them.
    """
    if address != "auto":
        return address
    try:
        from ray._private.services import get_ray_address_from_environment
    except ImportError:  # private: a Ray without it is asked at its own pace
        return address
    return str(get_ray_address_from_environment(address, None))


def _check_answers(address: str, place: str) -> None:
    """Check that somebody listens at a HOST:PORT; Ray itself tries a wrong one for minutes.

    Args:
        address: as the user gave it.
        place: where that is.

    Raises:
        InputError: where nobody does.
    """
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or "/" in place:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        found = "" if place == address else f", where Ray looks for {address!r}"
        raise _no_cluster(place, f"{error}{found}") from error


def _no_cluster(address: str, reason: str) -> InputError:
    return InputError(
        f"no Ray cluster at {address!r} ({reason}); start one with ray start --head, or say "
        "where: --address HOST:6379"
    )


def _runtime() -> dict[str, Any]:
    """Return what workers need to import what this process imports besides its environment."""
    installed = (sys.prefix, sys.base_prefix)
    path = [entry for entry in sys.path if entry and not entry.startswith(installed)]
    return {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(path)}}} if path else {}
