"""Chat templates are programs that come with a model: first rendered where one can be ended."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError

CHAT = [{"role": "user", "content": "1 + 1 = ?"}]
"""Messages that a template is tried on."""

_CPU_S, _MEMORY_GIB = 10, 2

_RENDER = """
import json, os, resource, signal, sys
from pathlib import Path
from transformers.utils.chat_template_utils import render_jinja_template

cpu_s, memory_gib = map(int, sys.argv[1:])
pages = int(Path("/proc/self/statm").read_text().split()[0])
for limit, value in (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_CPU, int(sum(os.times()[:2])) + 1 + cpu_s),
    (resource.RLIMIT_AS, pages * resource.getpagesize() + (memory_gib << 30)),
):
    resource.setrlimit(limit, (value, value))
try:
    render_jinja_template(**json.load(sys.stdin))
except MemoryError:
    os.kill(os.getpid(), signal.SIGKILL)
except Exception:  # whoever renders it says what is wrong
    pass
"""


def check_ends(tokenizer: Any, template: str, where: str | Path, **options: Any) -> None:
    """Check that a chat template comes to an end, in a process of its own with limits.

    A template that loops can be stopped nowhere else: not all that it may call heeds a signal.

    Args:
        tokenizer: whose special tokens the template may name.
        template: as jinja.
        where: what is named where it does not end.
        options: what the template may ask for besides.

    Raises:
        InputError: where it takes more than the limits.
    """
    request = {"conversations": [CHAT], "chat_template": template}
    if not _ends(json.dumps({**tokenizer.special_tokens_map, **options, **request})):
        raise InputError(
            f"{where}: its chat template does not come to an end on one short message (within "
            f"{_CPU_S} s and {_MEMORY_GIB} GiB); put the chat_template.jinja of a model that was "
            "trained with one into the folder"
        )


@lru_cache(64)
def _ends(request: str) -> bool:
    # Modules of the folder in which a user works would be imported without -P.
    command = [sys.executable, "-P", "-c", _RENDER, str(_CPU_S), str(_MEMORY_GIB)]
    done = subprocess.run(command, input=request.encode(), stderr=subprocess.PIPE, check=False)
    if done.returncode > 0:
        done.check_returncode()
    return done.returncode == 0
