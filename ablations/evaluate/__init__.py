"""The paper's benchmarks on one model, resumable; what `layerswap evaluate` runs."""

from ablations.evaluate.request import SuiteRequest
from ablations.evaluate.run import SuiteResult, evaluate_model

__all__ = ["SuiteRequest", "SuiteResult", "evaluate_model"]
