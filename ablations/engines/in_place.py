"""The two engines that take tensors in place: a transformers model, and vLLM from its driver.

Each loads `TensorMix`es and knows nothing of cells. lm-eval and vLLM are reached through their one
home each. The change of an adapter is added to the base's weights: vLLM's own LoRA support was
slower (`tests/benchmarks/bench_lora.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ablations.engines import vllm_engine
from ablations.engines.errors import SwapFailed
from ablations.engines.fused import with_siblings
from ablations.engines.lm_eval_backend import start_model
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Backend

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix

EXTENSION = "ablations.engines.vllm_worker.SwapExtension"
"""What every vLLM worker is extended by; imported by name in its process."""


class Engine(Protocol):
    """A model in memory whose tensors can be replaced."""

    backend: Backend
    """Its name."""

    def start(self, folder: Path, options: EngineOptions) -> Any:
        """Load the checkpoint `folder` and return lm-eval's model object."""
        ...

    def check(self, names: Sequence[str]) -> None:
        """Check that the model consists of the tensors `names`.

        Raises:
            SwapFailed: where it does not.
        """
        ...

    def expand(self, changed: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Return `changed` and what must be loaded with it."""
        ...

    def load(self, mixes: Mapping[str, TensorMix]) -> int:
        """Replace tensors, one at a time; return how many bytes were read in.

        Raises:
            SwapFailed: when some were not.
        """
        ...

    def forget(self) -> None:
        """Drop everything computed with the weights before."""
        ...

    def stop(self) -> None:
        """End the engine and give back its memory."""
        ...


class HfEngine:
    """A transformers model in this process; tensors are copied over its parameters."""

    backend: Backend = "hf"

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lm: Any = None
        self._tensors: dict[str, Any] = {}

    def start(self, folder: Path, options: EngineOptions) -> Any:
        """Load the checkpoint and return lm-eval's model object."""
        self._lm = start_model(str(folder), "hf", options)
        self._tensors = dict(self._lm.model.state_dict(keep_vars=True))
        return self._lm

    def check(self, names: Sequence[str]) -> None:
        """Check that every tensor has a parameter of its name, and no parameter is left over."""
        away = [name for name, each in self._tensors.items() if each.is_meta]
        if away:
            raise SwapFailed(
                f"parts of the model did not fit the GPUs and are kept elsewhere ({away[0]}), so "
                "its tensors cannot be replaced in place",
                lasting=True,
            )
        unknown = [name for name in names if name not in self._tensors]
        known = {self._tensors[name].data_ptr() for name in names if name in self._tensors}
        left = [name for name, each in self._tensors.items() if each.data_ptr() not in known]
        if unknown or left:
            raise SwapFailed(
                "transformers holds this model under other names than its checkpoint "
                f"({', '.join([*unknown, *left][:3])}), so its tensors cannot be replaced in place",
                lasting=True,
            )

    def expand(self, changed: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Return `changed`: nothing is fused here."""
        del names
        return changed

    def load(self, mixes: Mapping[str, TensorMix]) -> int:
        """Copy tensors over the parameters of the same names, block by block, in their dtype."""
        import torch

        from layerswap_method.tensors import MixReader

        read = 0
        with torch.no_grad():
            for name, mix in mixes.items():
                reader, parameter = MixReader(mix), self._tensors[name]
                if reader.shape != parameter.shape:
                    raise SwapFailed(
                        f"{name}: {list(reader.shape)} does not fit the engine's "
                        f"{list(parameter.shape)}"
                    )
                reader.copy_to(parameter)
                read += reader.nbytes
        return read

    def forget(self) -> None:
        """Do nothing: lm-eval keeps no cache between two runs on a transformers model."""

    def stop(self) -> None:
        """Drop the model."""
        self._lm, self._tensors = None, {}


class VllmEngine:
    """One vLLM engine; its workers read and load the tensors themselves (`vllm_worker`).

    Only names and paths go to the workers, as JSON.
    """

    backend: Backend = "vllm"

    def __init__(self) -> None:
        """Start nothing yet."""
        self._llm: Any = None
        self._parts: dict[str, str] = {}

    def start(self, folder: Path, options: EngineOptions) -> Any:
        """Start the engine on the checkpoint and return lm-eval's model object."""
        lm = start_model(
            str(folder), "vllm", options, engine_arguments={"worker_extension_cls": EXTENSION}
        )
        self._llm = lm.model
        self._parts = dict(self._llm.collective_rpc("layerswap_parts")[0])
        return lm

    def check(self, names: Sequence[str]) -> None:
        """Do nothing: vLLM renames and fuses; what it made of a load is checked after it."""

    def expand(self, changed: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Return `changed` and everything in the same fused module."""
        return with_siblings(changed, names, self._parts)

    def load(self, mixes: Mapping[str, TensorMix]) -> int:
        """Have every worker load the tensors. After a failure the engine is of no more use."""
        from layerswap_method.tensors import mixes_to_json

        replies = self._llm.collective_rpc("layerswap_load", args=(mixes_to_json(mixes),))
        for reply in replies:
            if reply["problem"]:
                raise SwapFailed(reply["problem"], lasting=reply["lasting"])
        return int(replies[0]["bytes"])

    def forget(self) -> None:
        """Drop the prefix cache: keys and values of the weights before."""
        if not self._llm.reset_prefix_cache():
            raise SwapFailed("vLLM did not reset its prefix cache: requests are still running")

    def stop(self) -> None:
        """End the engine, if it runs."""
        llm, self._llm = self._llm, None
        if llm is not None:
            vllm_engine.shut_down(llm)
