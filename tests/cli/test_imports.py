"""What is imported where: nothing heavy for help, and one home for each heavy package."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {
    *("torch", "transformers", "tokenizers", "safetensors", "mergekit", "lm_eval", "vllm"),
    *("numpy", "scipy", "pydantic", "datasets", "sacrebleu", "ray", "matplotlib"),
    *("peft", "huggingface_hub", "jinja2", "tabulate"),
}
ONE_HOME = {"mergekit", "vllm", "lm_eval", "ray", "matplotlib", "peft", "jinja2", "tabulate"}

WALK = """
import json, sys
import click
from ablations.cli import main

def walk(command, path):
    print(json.dumps([path, command.get_help(click.Context(command, info_name=path[-1]))]))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            walk(command.get_command(context, name), [*path, name])

walk(main, ["layerswap"])
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_no_help_imports_anything_heavy():
    done = subprocess.run(
        [sys.executable, "-c", WALK], capture_output=True, text=True, check=True, cwd=ROOT
    )
    *pages, modules = [json.loads(line) for line in done.stdout.splitlines()]
    commands = [" ".join(path) for path, _ in pages]
    assert {"layerswap", "layerswap pocket build", "layerswap quickstart"} <= set(commands)
    assert "click" in modules
    assert not HEAVY & set(modules)
    assert all("Usage:" in page for _, page in pages)


def _imports(code):
    """Return the top-level packages that `code` imports anywhere, functions included.

    What stands under ``if TYPE_CHECKING:`` never runs and does not count.
    """
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value).split(".")[0])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(code))
    return found


def test_each_heavy_package_has_one_home():
    homes = defaultdict(list)
    for package in ("layerswap_method", "ablations"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in _imports(path.read_text(encoding="utf-8")) & ONE_HOME:
                homes[name].append(path.relative_to(ROOT).as_posix())
    asking = {path.rpartition("/")[0] for path in homes.pop("lm_eval")}
    assert asking == {"ablations/engines", "ablations/tasks"}
    assert homes["vllm"] == ["ablations/engines/vllm_engine.py"]
    assert homes["matplotlib"] == ["ablations/drawing/canvas.py"]
    # What is written into mergekit itself; nothing here imports it.
    plugin = [path for path in homes.pop("mergekit") if "/upstream/" not in path]
    assert {path.split("/")[1] for path in plugin} == {"mergekit_plugin"}
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_the_evaluation_modules_import_nothing_heavy_before_they_run():
    code = (
        "import sys; import ablations.engines.lm_eval_backend, ablations.evaluate.run; "
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "ablations" in loaded
    assert not loaded & {"torch", "transformers", "lm_eval", "vllm", "mergekit", "datasets", "ray"}
