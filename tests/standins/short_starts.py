"""A plugin of pytest for one GPU (`-p tests.standins.short_starts`): engines that start soon.

Every vLLM engine runs eagerly with a tenth of the GPU's memory and 1 GiB of cache, so a start
neither compiles nor measures memory. The project's other settings stay.
"""

from ablations.engines import vllm_engine

_engine_arguments = vllm_engine.engine_arguments


def _short(options, stored_dtype):
    arguments = _engine_arguments(options, stored_dtype)
    arguments |= {"enforce_eager": True, "gpu_memory_utilization": 0.1}
    return arguments | {"kv_cache_memory_bytes": 1 << 30}


vllm_engine.engine_arguments = _short
