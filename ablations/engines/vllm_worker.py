"""Loading in vLLM's workers: a model before the first answer, and others into a running engine.

Workers import this, before they load a model, as the home of their ``worker_extension_cls``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from ablations.engines import loading
from ablations.engines.vllm_engine import MERGE_FORMAT, is_cpu_build
from layerswap_method.tensors import MIXES, TensorMix


@register_model_loader(MERGE_FORMAT)
class MergeLoader(DefaultModelLoader):  # type: ignore[misc]
    """Starts an engine on the tensors of a merge, in the place of those in a checkpoint's files.

    All else is vLLM's own. Names are checked before: it has no error for a missing tensor.
    """

    def __init__(self, load_config: Any):
        """Take the tensors, as JSON of `MIXES`, from vLLM's extra options of a loader."""
        self._mixes: str = load_config.model_loader_extra_config["mixes"]
        super().__init__(dataclasses.replace(load_config, model_loader_extra_config={}))

    def get_all_weights(self, _: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and content of every tensor."""
        device = next(model.parameters()).device
        yield from loading.read_tensors(MIXES.validate_json(self._mixes), device)


class SwapExtension:
    """Given to vLLM as ``worker_extension_cls``, which makes it a part of each worker."""

    def layerswap_load(self: Any, text: str, names: Collection[str]) -> str | None:
        """Load a model, named as JSON by `MIXES`; return what went wrong, if anything did.

        Only tensors of `names` are loaded: the others are in the engine. Where vLLM fuses some of
        them with others, it would leave random numbers in the others' place, so all are loaded. The
        change of an adapter is added to the base's weights: vLLM's own LoRA support was slower
        (`tests/benchmarks/results/bench_lora.json`).
        """
        try:
            mixes = MIXES.validate_json(text)
            incomplete = _reload(self, {name: mixes[name] for name in names})
            if len(names) == len(mixes):
                self.layerswap_padded = incomplete
            elif not incomplete <= self.layerswap_padded:
                _reload(self, mixes)
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


def _reload(worker: Any, mixes: Mapping[str, TensorMix]) -> set[str]:
    """Load tensors; return the modules that got a part of their values only.

    vLLM has no error for those. It gives the rest of their memory no value, which is right where
    that is padding: then a whole load leaves it, too.
    """
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    incomplete = set[str]()

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield from loading.read_tensors(mixes, worker.device)
        for name, module in worker.get_model().named_modules():
            info = get_layerwise_info(module)  # as new where a module is complete
            if info.can_load() and 0 < info.load_numel < info.load_numel_total:
                incomplete.update(() if is_deferred_attention_layer(module) else (name,))

    worker.reload_weights(weights_iterator=tensors())
    return incomplete


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
