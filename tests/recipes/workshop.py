"""A folder as a user has it (recipes, experts, pocket models), a hub, and merges run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.recipes.documents import (
    RECIPES,
    ROOT,
    Reference,
    command,
    first_commands,
    references,
)
from tests.recipes.standins import ORIGINALS, build, build_model, folder_of
from tests.standins.oracle import stored

TIMEOUT_S = 1200


class Workshop:
    """Stand-ins of every model that a recipe names, and the merges made from them."""

    def __init__(self, root: Path, endpoint: str) -> None:
        self.hub = root / "hub"
        self.folder = root / "workspace"
        self.folder.mkdir(parents=True)
        (self.folder / "recipes").symlink_to(ROOT / "recipes")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))},
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(root / "hf_home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": str(TIMEOUT_S),
            "HF_HUB_ETAG_TIMEOUT": str(TIMEOUT_S),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        build([r for recipe in RECIPES for r in references(recipe)], self.hub, self.folder)
        for name, sizes in ORIGINALS.items():
            build_model(name, self.folder / "originals" / name, **sizes)
        for recipe in RECIPES:
            for words in first_commands(recipe):
                self.run_first(words)

    def run_first(self, words: Sequence[str]) -> str:
        """Run a `layerswap` command of a header on stand-ins of the models' sizes."""
        given = [f"./originals/{word}" if word in ORIGINALS else word for word in words[1:]]
        run = self.run([sys.executable, "-c", "from ablations.cli import main; main()", *given])
        assert run.returncode == 0, run.stderr[-4000:]
        return run.stdout

    def merge_all(self) -> Mapping[str, str | None]:
        """Run every recipe's own command; recipe -> error or None."""
        return dict(zip(RECIPES, self.merge([command(r) for r in RECIPES]), strict=True))

    def merge(self, merges: Sequence[Sequence[str]]) -> list[str | None]:
        """Run `mergekit-yaml` commands in one process; the errors, None where there was none."""
        commands, results = self.folder / "commands.json", self.folder / "results.json"
        commands.write_text(json.dumps(merges))
        results.unlink(missing_ok=True)
        run = self.run(
            [sys.executable, "-m", "tests.recipes.merge_all", str(commands), str(results)]
        )
        assert results.is_file(), run.stderr[-4000:]
        errors: list[str | None] = json.loads(results.read_text())
        assert len(errors) == len(merges)
        return errors

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def console_script(self) -> list[str]:
        """Return how to start `mergekit-yaml`: itself if this version of us is installed here."""
        installed = Path(sysconfig.get_path("purelib")) / "layerswap.pth"
        if installed.is_file() and installed.read_bytes() == (ROOT / "layerswap.pth").read_bytes():
            return [str(Path(sys.executable).with_name("mergekit-yaml"))]
        start = (
            "import layerswap_method; layerswap_method.register(); "
            "from mergekit.scripts.run_yaml import main; main()"
        )
        return [sys.executable, "-c", start]

    def output(self, recipe: str) -> Path:
        return self.folder / command(recipe)[2]

    def merged(self, recipe: str) -> dict[str, torch.Tensor]:
        return stored(self.output(recipe))

    def source(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a model as a recipe names it; of a base+adapter, merged."""
        reference = Reference.parse(name)
        if reference.adapter is None:
            return stored(folder_of(name, self.hub, self.folder))
        import peft
        import transformers

        base, adapter = (
            str(folder_of(part, self.hub, self.folder))
            for part in (reference.model, reference.adapter)
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        merged = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
        return dict(merged.state_dict())
