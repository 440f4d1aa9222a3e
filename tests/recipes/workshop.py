"""A folder as a user has it (recipes, experts, pocket models), a hub, and merges run in it."""

import json
import os
import subprocess
import sys
from functools import cached_property

from tests.recipes.documents import RECIPES, ROOT, Reference, command, first_commands, references
from tests.recipes.standins import ORIGINALS, build, build_model, folder_of
from tests.standins.oracle import stored

TIMEOUT_S = 1200
MERGE_ALL = """
import json, sys, traceback
import huggingface_hub, layerswap_method
layerswap_method.register()
# mergekit asks the hub for these; the others are found in its cache
huggingface_hub.list_repo_files = lambda *names, **how: ["model.safetensors"]
from mergekit.scripts.run_yaml import main
errors = []
for words in json.loads(sys.argv[1]):
    try:
        main.main(args=words[1:], standalone_mode=False)
        errors.append(None)
    except (Exception, SystemExit):
        errors.append(traceback.format_exc())
print(json.dumps(errors))
"""


class Workshop:
    """Stand-ins of every model that a recipe names, and the merges made from them."""

    def __init__(self, root):
        self.hub = root / "hf_home" / "hub"
        self.folder = root / "workspace"
        self.folder.mkdir(parents=True)
        (self.folder / "recipes").symlink_to(ROOT / "recipes")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))},
            "HF_HOME": str(root / "hf_home"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        build([r for recipe in RECIPES for r in references(recipe)], self.hub, self.folder)
        for name, sizes in ORIGINALS.items():
            build_model(name, self.folder / "originals" / name, **sizes)
        for recipe in RECIPES:
            for words in first_commands(recipe):
                self.run_first(words)

    def run_first(self, words):
        """Run a `layerswap` command of a header on stand-ins of the models' sizes."""
        given = [f"./originals/{word}" if word in ORIGINALS else word for word in words[1:]]
        run = self.run([sys.executable, "-c", "from ablations.cli import main; main()", *given])
        assert run.returncode == 0, run.stderr[-4000:]

    @cached_property
    def errors(self):
        """Run every recipe's own command, once; recipe -> error or None."""
        return dict(zip(RECIPES, self.merge([command(r) for r in RECIPES]), strict=True))

    def merge(self, merges):
        """Run `mergekit-yaml` commands in one process; the errors, None where there was none."""
        run = self.run([sys.executable, "-c", MERGE_ALL, json.dumps(merges)])
        assert run.returncode == 0, run.stderr[-4000:]
        return json.loads(run.stdout.splitlines()[-1])

    def run(self, words):
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def output(self, recipe):
        return self.folder / command(recipe)[2]

    def source(self, name):
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
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        merged = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
        return dict(merged.state_dict())
