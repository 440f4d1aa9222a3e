"""When a study's live engine is checked, and what is in doubt when it is wrong. Loads no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablations.runner.work import Doubt

if TYPE_CHECKING:
    from ablations.engines.live import LiveEvaluator


class EngineChecks:
    """What a live engine was asked since it was last known to be right."""

    def __init__(self, every: int) -> None:
        """Take the number of models after which it is time for a check."""
        self._every = every
        self._unchecked: dict[str, None] = {}
        self._models = dict[str, None]()
        self._doubts: list[Doubt] = []

    def asked(self, score_key: str, weights_key: str) -> None:
        """Take note of an item that the engine is asked now."""
        self._unchecked[score_key] = None
        self._models[weights_key] = None

    def is_due(self, weights_key: str) -> bool:
        """Return whether a check is due before the model `weights_key` is asked."""
        return weights_key not in self._models and len(self._models) >= self._every

    def run(self, live: LiveEvaluator | None) -> None:
        """Check the engine, if it runs and was asked something; remember what is in doubt."""
        from ablations.engines.errors import SwapFailed

        unchecked = tuple(self._unchecked)
        self.forget()
        if live is None or not unchecked:
            return
        try:
            live.check()
        except SwapFailed as error:
            self._doubts.append(Doubt(unchecked, error.message))

    def forget(self) -> None:
        """Take what was asked as it is."""
        self._unchecked.clear()
        self._models.clear()

    def doubt(self) -> Doubt | None:
        """Return what is in doubt, once."""
        doubts, self._doubts = self._doubts, []
        keys = tuple(key for each in doubts for key in each.score_keys)
        return Doubt(keys, doubts[0].reason) if doubts else None
