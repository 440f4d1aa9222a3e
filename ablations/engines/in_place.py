"""The two engines that take weights in place: a transformers model, and vLLM from its driver.

Each loads a whole model: vLLM fuses tensors, and one loaded without its siblings leaves random
numbers in their place. The change of an adapter is added to the base's weights: vLLM's own LoRA
support was slower (`tests/benchmarks/results/bench_lora.json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.engines import vllm_engine
from ablations.engines.lm_eval_backend import start_model
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Backend
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix


class SwapFailed(LayerSwapError):
    """A model could not be put into a live engine; a checkpoint on disk may do."""


class HfEngine:
    """A transformers model in this process; tensors are copied over its parameters."""

    backend: Backend = "hf"

    def __init__(self) -> None:
        """Start nothing yet."""
        self._tensors: dict[str, Any] = {}

    def start(self, folder: Path, options: EngineOptions) -> Any:
        """Load the checkpoint and return lm-eval's model object."""
        lm = start_model(str(folder), "hf", options)
        self._tensors = dict(lm.model.state_dict(keep_vars=True))
        return lm

    def check(self, names: Sequence[str]) -> None:
        """Check that every tensor has a parameter of its name, and no parameter is left over.

        Raises:
            SwapFailed: where one has not, or is not on a GPU.
        """
        away = next((name for name, tensor in self._tensors.items() if tensor.is_meta), None)
        if away is not None:
            raise SwapFailed(
                f"parts of the model did not fit the GPUs and are elsewhere ({away}), so "
                "its tensors cannot be replaced in place"
            )
        unknown = [name for name in names if name not in self._tensors]
        known = {self._tensors[name].data_ptr() for name in names if name in self._tensors}
        left = [name for name, tensor in self._tensors.items() if tensor.data_ptr() not in known]
        if unknown or left:
            raise SwapFailed(
                "transformers holds this model under other names than its checkpoint "
                f"({', '.join([*unknown, *left][:3])}), so its tensors cannot be replaced in place"
            )

    def load(self, mixes: Mapping[str, TensorMix]) -> None:
        """Copy tensors over the parameters of the same names, block by block, in their dtype.

        Raises:
            SwapFailed: for another shape.
            InputError: where a file is not as it was.
        """
        import torch

        from layerswap_method.tensors import MixReader

        with torch.no_grad():
            for name, mix in mixes.items():
                reader, parameter = MixReader(mix), self._tensors[name]
                if reader.shape != parameter.shape:
                    raise SwapFailed(
                        f"{name}: {list(reader.shape)} does not fit the engine's "
                        f"{list(parameter.shape)}"
                    )
                reader.copy_to(parameter)

    def reset_cache(self) -> None:
        """Do nothing: lm-eval keeps no cache between two runs on a transformers model."""

    def stop(self) -> None:
        """Drop the model."""
        self._tensors = {}


class VllmEngine:
    """One vLLM engine; its workers read and load the tensors (`vllm_engine.SwapExtension`)."""

    backend: Backend = "vllm"

    def start(self, folder: Path, options: EngineOptions) -> Any:
        """Start the engine on the checkpoint and return lm-eval's model object."""
        extension = {"worker_extension_cls": "ablations.engines.vllm_engine.SwapExtension"}
        lm = start_model(str(folder), "vllm", options, engine_arguments=extension)
        self._llm = lm.model
        return lm

    def check(self, names: Sequence[str]) -> None:
        """Do nothing: vLLM renames and fuses; what it made of a load is checked after it."""

    def load(self, mixes: Mapping[str, TensorMix]) -> None:
        """Have every worker load the tensors; only names and paths go there, as JSON.

        Raises:
            SwapFailed: when that failed; the engine is then of no more use.
        """
        from layerswap_method.tensors import mixes_to_json

        for problem in self._llm.collective_rpc("layerswap_load", args=(mixes_to_json(mixes),)):
            if problem is not None:
                raise SwapFailed(f"vLLM could not load the tensors: {problem}")

    def reset_cache(self) -> None:
        """Drop the prefix cache: keys and values of the weights before."""
        if not self._llm.reset_prefix_cache():
            raise SwapFailed("vLLM did not reset its prefix cache: requests are still running")

    def stop(self) -> None:
        """End the engine."""
        vllm_engine.shut_down(self._llm)
        del self._llm
