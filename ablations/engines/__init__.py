"""Engines that stay alive for a whole study: each cell's changed tensors go in in place."""

from ablations.engines.errors import SwapFailed
from ablations.engines.live import LiveEvaluator, SwapReport, open_live

__all__ = ["LiveEvaluator", "SwapFailed", "SwapReport", "open_live"]
