"""How training shows that it goes on: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 15.0


class Progress:
    """Reports steps and losses of stages that run at the same time."""

    def __init__(self, steps: Mapping[str, int], enabled: bool) -> None:
        self._steps = steps
        self._logs = enabled and not sys.stderr.isatty()
        self._shows = enabled and sys.stderr.isatty()
        self._bars: dict[str, tqdm[Any]] = {}
        self._logged_at: dict[str, float] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for bar in self._bars.values():
            bar.close()

    def update(self, name: str, step: int, loss: float) -> None:
        """Report that stage `name` has done `step` steps, the last one with `loss`."""
        if self._shows:
            if name not in self._bars:
                self._bars[name] = tqdm(
                    total=self._steps[name],
                    desc=f"training {name}",
                    unit="step",
                    position=len(self._bars),
                    leave=True,
                )
            bar = self._bars[name]
            bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update(step - bar.n)
        elif self._logs:
            last = step == self._steps[name]
            now = time.monotonic()
            if last or now - self._logged_at.setdefault(name, now) >= LOG_INTERVAL_S:
                self._logged_at[name] = now
                logger.info(
                    "training %s: step %d/%d, loss %.2f", name, step, self._steps[name], loss
                )
