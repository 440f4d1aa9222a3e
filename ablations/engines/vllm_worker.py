"""What a vLLM worker can do besides vLLM's own: read a cell's tensors and load them in place.

vLLM imports this module by name in each worker's process. Knows the worker it is mixed into, and
`TensorMix`es; imports no vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ablations.engines import vllm_engine

if TYPE_CHECKING:
    import torch

    from layerswap_method.tensors import TensorMix

_RELOAD_LOG = "vllm.model_executor.model_loader.reload"
"""Says of every layer that was rightly left alone that its weights failed to load."""


class _PartlyLoaded(Exception):
    """A module got some of its tensors and would be rebuilt without the others."""


class SwapExtension:
    """Given to vLLM as ``worker_extension_cls``; methods begin with ``layerswap_``."""

    if TYPE_CHECKING:

        def get_model(self) -> torch.nn.Module:
            """Return the worker's model."""

        def reload_weights(self, *, weights_iterator: Iterator[Any]) -> None:
            """Load some of the model's tensors, given as in its checkpoint."""

    def layerswap_parts(self) -> dict[str, str]:
        """Return which modules of a checkpoint are fused: ``q_proj -> qkv_proj``."""
        mapping = getattr(self.get_model(), "packed_modules_mapping", None) or {}
        return {part: whole for whole, parts in mapping.items() for part in parts}

    def layerswap_load(self, text: str) -> dict[str, Any]:
        """Load tensors in place.

        Args:
            text: name -> mix as `mixes_to_json` writes it, siblings of fused modules together.

        Returns:
            ``bytes`` read, ``problem`` in words (or None), and whether it is ``lasting``.
        """
        from layerswap_method.tensors import mixes_from_json

        mixes = mixes_from_json(text)
        reply: dict[str, Any] = {"bytes": 0, "problem": None, "lasting": False}
        self._layerswap_load(mixes, reply)
        reply.pop("left", None)
        return reply

    def _layerswap_load(self, mixes: Mapping[str, TensorMix], reply: dict[str, Any]) -> None:
        log = logging.getLogger(_RELOAD_LOG)
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            self.reload_weights(weights_iterator=self._layerswap_tensors(mixes, reply))
            if reply.pop("left", len(mixes)):
                raise _PartlyLoaded("vLLM did not read all tensors that it was given")
            if vllm_engine.is_cpu_build():
                _prepack_tied(self.get_model())
        except _PartlyLoaded as error:
            reply.update(problem=str(error), lasting=True)
        except Exception as error:  # whatever vLLM raises: the driver must hear of it in words
            reply["problem"] = f"vLLM could not load the tensors: {type(error).__name__}: {error}"
        finally:
            log.setLevel(level)

    def _layerswap_tensors(
        self, mixes: Mapping[str, TensorMix], reply: dict[str, Any]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        from layerswap_method.tensors import MixReader

        reply["left"] = len(mixes)
        for name, mix in mixes.items():
            reader = MixReader(mix)
            reply["bytes"] += reader.nbytes
            reply["left"] -= 1
            yield name, reader.read()
        # vLLM has loaded the last one when it asks for the next, and has not yet put the modules
        # in place: now it can be told what it has of each.
        if partial := vllm_engine.partly_loaded(self.get_model()):
            raise _PartlyLoaded(
                f"vLLM fuses tensors in a way that layer_swap does not know: {len(partial)} "
                f"modules got only a part of theirs ({', '.join(partial[:3])})"
            )


def _prepack_tied(model: torch.nn.Module) -> None:
    """Have modules that share a parameter pack it anew.

    On CPU vLLM multiplies with a packed copy of the weight. Loading the input embedding renews
    that module's copy; a tied output embedding keeps the one of the model before.
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
