"""How many items of a task are answered.

vLLM tells it through the bar that it would draw (`EngineBar`), transformers batch by batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ablations.machine.progress import Step, tell


class ItemProgress:
    """Requests of one task that have an answer, told as items."""

    def __init__(self, requests: Sequence[Any]):
        """Tell that `requests` (of lm-eval, at least one) begin."""
        self._task = str(requests[0].task_name)
        self._requests = len(requests)
        self._items = len({(request.task_name, request.doc_id) for request in requests})
        self._answered = 0
        self.add()

    def add(self, answered: int = 0) -> None:
        """Tell that further requests have an answer."""
        self._answered = min(self._answered + answered, self._requests)
        done = self._items * self._answered / self._requests
        tell(Step(self._task, done, self._items))
        if answered and self._answered == self._requests:
            tell(Step(f"{self._task}: scoring"))


class EngineBar:
    """What vLLM takes for a tqdm bar: draws nothing, tells how far its requests are."""

    def __init__(self, progress: ItemProgress):
        """Take the progress that is told."""
        self._progress = progress

    def __call__(self, over: Iterable[Any] | None = None, **options: Any) -> EngineBar:
        """Return the bar of a loop or of a number of requests."""
        self._over = over
        self._began = time.monotonic()
        self.n = 0
        self.postfix = ""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield what the bar is over; preparing prompts counts as no answer."""
        yield from self._over or ()

    @property
    def format_dict(self) -> dict[str, float]:
        """The seconds since the bar began, which vLLM divides by."""
        return {"elapsed": max(time.monotonic() - self._began, 1e-6)}

    def update(self, count: int = 1) -> None:
        """Take note of answers."""
        self.n += count
        self._progress.add(count)

    def refresh(self) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """End nothing."""
