"""What every test shares: no hub is asked for anything, mergekit knows `layer_swap`, a testbed."""

import os

import pytest
from hypothesis import HealthCheck, settings

import layerswap_method
from ablations.testbeds.pocket.build import PocketConfig, build_pocket
from tests.standins.experts import experts, trio, trio_copy  # noqa: F401 - fixtures

for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No property is about time, and a machine that stands still for a moment is none's counterexample.
# Counterexamples are not stored: the checkout may be one that may only be read.
settings.register_profile(
    "layerswap", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("layerswap")

# For a run from a checkout that was not installed; nothing to do after `pip install`.
layerswap_method.register()


@pytest.fixture(scope="session")
def tiny_pocket(tmp_path_factory):
    """Return a testbed of the `tiny` preset. Do not write to it."""
    out = tmp_path_factory.mktemp("pocket") / "tiny"
    return build_pocket(out, PocketConfig.preset("tiny"))
