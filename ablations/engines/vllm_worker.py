"""Loading in vLLM's workers: whole models into a running engine.

Workers import this as the home of their ``worker_extension_cls``.
"""

from __future__ import annotations

from typing import Any

import torch

from ablations.engines import loading
from ablations.engines.vllm_engine import is_cpu_build
from layerswap_method.tensors import MIXES


class SwapExtension:
    """Given to vLLM as ``worker_extension_cls``, which makes it a part of each worker."""

    def layerswap_load(self: Any, text: str) -> str | None:
        """Load a whole model, as JSON of `MIXES`; return what went wrong, if anything did.

        vLLM fuses tensors, and leaves random numbers in the place of what it does not get. The
        change of an adapter is added to the base's weights: vLLM's own LoRA support was slower
        (`tests/benchmarks/results/bench_lora.json`).
        """
        try:
            tensors = loading.read_tensors(MIXES.validate_json(text), self.device)
            self.reload_weights(weights_iterator=tensors)
            if is_cpu_build():
                _prepack_tied(self.get_model())
            # A NaN of the model before would be one of every later model: attention multiplies what
            # is masked by 0, and 0 times NaN is NaN.
            for cache in self.model_runner.kv_caches:
                cache.zero_()
        except Exception as error:  # whatever vLLM raises: the driver must hear of it in words
            return f"{type(error).__name__}: {error}"
        return None

    def layerswap_faulty_tensor(self: Any) -> str | None:
        """Return the first weight that has NaN or infinity, None where none is seen to have.

        On CPU vLLM packs some weights, which are not seen.
        """
        tensors = self.get_model().named_parameters()
        return next((name for name, t in tensors if not t.isfinite().all()), None)


def _prepack_tied(model: torch.nn.Module) -> None:
    """Have modules that share a parameter pack it anew.

    On CPU vLLM multiplies with a packed copy of the weight. Loading the input embedding renews
    its copy; a tied output embedding keeps the one of the model before.
    """
    owners: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    for modules in owners.values():
        for module in modules if len(modules) > 1 else ():
            method: Any = getattr(module, "quant_method", None)
            if method is not None:
                method.process_weights_after_loading(module)
