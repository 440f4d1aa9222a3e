"""How training shows that it goes on: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tqdm import tqdm

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 15.0


class TrainingBars:
    """Reports steps and losses of stages that run at the same time."""

    def __init__(self, steps: Mapping[str, int]) -> None:
        """Show a bar a stage, if stderr is a terminal."""
        self._bars = {
            name: tqdm(total=steps[name], desc=f"training {name}", unit="step", disable=None)
            for name in steps
        }
        self._logged_at = dict.fromkeys(steps, time.monotonic())

    def update(self, name: str, step: int, loss: float) -> None:
        """Report that stage `name` has done `step` steps, the last one with `loss`."""
        bar, now = self._bars[name], time.monotonic()
        bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
        bar.update(step - bar.n)
        is_due = step == bar.total or now - self._logged_at[name] >= LOG_INTERVAL_S
        if bar.disable and is_due:
            self._logged_at[name] = now
            logger.info("training %s: step %d/%d, loss %.2f", name, step, bar.total, loss)

    def close(self) -> None:
        """Leave the bars as they are."""
        for bar in self._bars.values():
            bar.close()
