"""The engine that evaluates on this machine, and its version. None is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import math
from typing import Any

from ablations.engines import vllm_engine
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.scoring.evaluation import Backend
from layerswap_method.errors import InputError, counted
from layerswap_method.threads import usable_cores

logger = logging.getLogger(__name__)

_VERSIONED = ("lm_eval", "transformers", "tokenizers", "torch", "sacrebleu")


def resolve_backend(choice: BackendChoice) -> Backend:
    """Return the backend that `choice` stands for on this machine. Imports nothing heavy.

    Raises:
        InputError: for ``vllm`` where it is not installed, or a backend whose lm-eval is missing.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed; install it with: pip install 'layerswap[eval]'")
    if choice == "vllm" and not vllm_engine.is_installed():
        raise InputError(f"vLLM is not installed. {vllm_engine.HOW_TO_INSTALL}")
    if choice != "auto":
        return choice
    chosen: Backend = "vllm" if vllm_engine.is_installed() else "hf"
    build = "its CPU build; " if chosen == "vllm" and vllm_engine.is_cpu_build() else ""
    other = "" if chosen == "hf" else f" ({build}--backend hf evaluates with transformers)"
    logger.info("backend: %s%s", describe_backend(chosen), other)
    return chosen


def check_devices(backend: Backend, options: EngineOptions, jobs: int = 1) -> None:
    """Check that this machine has the GPUs that a model takes; on vLLM's CPU build, the cores.

    `jobs` engines run at a time, and share GPUs where there are too few.

    Raises:
        InputError: where it has fewer, for options that are vLLM's, and for pipeline
            stages on the CPU build, whose second stage fails in its first step (0.32.0); where
            engines share a GPU and would take more than its memory.
    """
    if backend == "vllm" and not vllm_engine.is_cpu_build():
        _check_shares(options, jobs)
    if options.gpus == 1:
        return
    if backend == "hf":
        raise InputError(
            "tensor_parallel_size and pipeline_parallel_size are vLLM's; with --backend hf one GPU "
            "holds the model: leave them at 1, or use --backend vllm"
        )
    if not vllm_engine.is_cpu_build():
        import torch

        devices, thing, hint = torch.cuda.device_count(), "GPU", ""
    elif options.pipeline_parallel_size == 1:
        devices, thing = usable_cores(), "CPU core"
        hint = " (this is vLLM's CPU build)"
    else:
        raise InputError(
            "pipeline_parallel_size: vLLM's CPU build runs no pipeline stages; leave it at 1 and "
            "raise tensor_parallel_size"
        )
    if options.gpus > devices:
        raise InputError(
            f"tensor_parallel_size x pipeline_parallel_size is {options.tensor_parallel_size} x "
            f"{options.pipeline_parallel_size} = {options.gpus}, and this machine has "
            f"{counted(devices, thing)}{hint}; lower one of them"
        )


def _check_shares(options: EngineOptions, jobs: int) -> None:
    import torch

    devices = torch.cuda.device_count()
    engines = -(-jobs // max(1, devices // options.gpus))
    share = math.floor(100 * options.gpu_memory_utilization / engines) / 100
    if engines > 1 and engines * options.gpu_memory_utilization > 1:
        raise InputError(
            f"--jobs {jobs}: this machine has {counted(devices, 'GPU')} for engines of "
            f"{options.gpus}, so that {engines} engines would share one, and each takes "
            f"{options.gpu_memory_utilization:g} of its memory; use --jobs "
            f"{max(1, devices // options.gpus)}, or add --set "
            f"evaluate.options.gpu_memory_utilization={share:g} where the model fits that"
        )


def describe_backend(backend: Backend) -> str:
    """Return the backend in words, with its version and what would change it."""
    if backend == "vllm":
        return f"vLLM {vllm_engine.installed_version()}"
    reason = "as requested" if vllm_engine.is_installed() else "vLLM is not installed"
    return f"HF transformers {importlib.metadata.version('transformers')} ({reason})"


def describe_start(backend: Backend, options: EngineOptions) -> str:
    """Return the backend in words; of vLLM whether an engine compiles the model, and why."""
    if backend == "hf":
        return describe_backend(backend)
    on_cpu, eager = vllm_engine.is_cpu_build(), vllm_engine.is_eager(options)
    compiled = "compiled" if on_cpu else "compiled with CUDA graphs"
    default = f"the default on {'CPU' if on_cpu else 'a GPU'}"
    other = "false compiles" if eager else "true starts sooner and answers slower"
    if options.enforce_eager is None:
        why = f"{default}; evaluate.options.enforce_eager: {other}"
    else:
        why = f"evaluate.options.enforce_eager: {str(options.enforce_eager).lower()}"
    return f"{describe_backend(backend)}, {'eager' if eager else compiled} ({why})"


def precision_note(backend: Backend, options: EngineOptions) -> str:
    """Return what computes in less than the experts' precision; empty where nothing does."""
    if backend == "hf" or vllm_engine.is_cpu_build() or options.dtype != "float32":
        return ""
    return (
        "the models are float32, and on a GPU vLLM computes their attention in TF32, whose "
        "products have 10 bits of mantissa: on an H100 log-likelihoods were 0.007 nats from those "
        "of transformers (in bfloat16 0.08); --backend hf evaluates with transformers"
    )


def engine_facts(backend: Backend) -> dict[str, Any]:
    """Return what is true of engines started here and decided by the machine."""
    if backend == "hf":
        return {}
    return {"batch_invariant": vllm_engine.is_batch_invariant()}


def backend_versions(backend: Backend) -> dict[str, str]:
    """Return the versions of the packages that can change a score of `backend`."""
    versions = {name: importlib.metadata.version(name) for name in _VERSIONED}
    if importlib.util.find_spec("py3langid") is not None:
        versions["py3langid"] = importlib.metadata.version("py3langid")
    if backend == "vllm":
        versions["vllm"] = vllm_engine.installed_version() or "unknown"
    return versions
