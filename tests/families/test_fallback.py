"""A mergekit whose planner is not the one of 0.1.5: the kernel alone gives the same tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.families.test_slices import both, sliced
from tests.standins.merging import recipe, roles
from tests.standins.oracle import READERS, Swap, assert_same, expected, stored
from tests.standins.streams import stream_of
from tests.standins.tokenizers import words, write_tokenizer
from tests.standins.tuned import tune
from tests.standins.zoo import LAYERS, VOCAB, make_model

FAMILIES = ["llama", "gpt2", "mixtral", "opt", "mistral3_vl", "qwen3_vl"]
SWAP = Swap(LAYERS)
MEASURED: dict[str, dict[str, Any]] = {
    "by_magnitude": {"weighting": "magnitude", "bottom_layers": 1, "bottom_transition": 2},
    "by_layer": {"placement": "delta_share"},
    "by_module": {"placement": "delta_share", "delta_unit": "module", "delta_blend": 0.3},
}

SCRIPT = """
import json, sys
from pathlib import Path

import layerswap_method
import mergekit

mergekit.__path__.insert(0, sys.argv[1])  # a planner with another signature is found first
layerswap_method.register()
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
from mergekit.plan import MergePlanner

assert Path(sys.modules["mergekit.plan"].__file__).parent == Path(sys.argv[1])
assert not hasattr(MergePlanner, "_layerswap_patched")
from mergekit.merge_methods import registered_methods

ours = [m.spec.name for m in registered_methods() if m.spec.name in ("layer_swap", "delta_revert")]
print("methods", *ours)
for out, document in json.loads(Path(sys.argv[2]).read_text()).items():
    try:
        config = MergeConfiguration.model_validate(document)
        run_merge(config, out, MergeOptions(quiet=True, copy_tokenizer=False))
    except layerswap_method.errors.InputError as error:
        print("REFUSED", Path(out).name, error)
"""


@pytest.fixture(scope="module")
def fallback(experts: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return the merges of a process in which the planner could not be extended."""
    import mergekit.plan

    root = tmp_path_factory.mktemp("fallback")
    changed = root / "changed"
    changed.mkdir()
    source = Path(mergekit.plan.__file__).read_text(encoding="utf-8")
    old, new = (
        "cfg_reader: ConfigReader,\n    ):",
        "cfg_reader: ConfigReader,\n        more=None,\n    ):",
    )
    assert source.count(old) == 1
    (changed / "plan.py").write_text(source.replace(old, new), encoding="utf-8")

    documents: dict[str, Any] = {}
    for family in FAMILIES:
        given = experts(family)
        for non_layer in ("average", "base"):
            swap = Swap(LAYERS, non_layer=non_layer)
            name = str(root / f"{family}-{non_layer}")
            documents[name] = recipe(roles(given), swap.parameters(), given.base)
    documents[str(root / "sliced")] = sliced(experts("llama"), [both((0, 2)), both((2, 6))], SWAP)
    documents[str(root / "taller")] = sliced(experts("llama"), [both((0, 4)), both((2, 6))], SWAP)
    words_of = {}
    for seed, role in enumerate(("task", "language")):
        words_of[role] = make_model("llama", root / "words" / role, seed, vocab_size=VOCAB)
        write_tokenizer(words_of[role], words())
    documents[str(root / "aligned")] = recipe(
        words_of, SWAP.parameters(), tokenizer={"source": "base"}
    )
    base = make_model("llama", root / "tuned" / "base", 0)
    tuned = {
        role: tune(base, root / "tuned" / role, seed, scale)
        for seed, (role, scale) in enumerate({"task": 1e-3, "language": 3e-4}.items())
    }
    for name, parameters in MEASURED.items():
        documents[str(root / name)] = recipe(tuned, parameters, base)
    (root / "recipes.json").write_text(json.dumps(documents))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(changed), str(root / "recipes.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return SimpleNamespace(
        root=root, log=done.stderr, said=done.stdout, words=words_of, documents=documents
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("non_layer", ["average", "base"])
def test_the_kernel_alone_gives_the_same_tensors(
    family: str, non_layer: str, fallback: Any, experts: Any
) -> None:
    given = experts(family)
    swap = Swap(LAYERS, non_layer=non_layer)
    read = READERS.get(family, stored)
    wanted = expected(swap, read(given.task), read(given.language), read(given.base))
    out = fallback.root / f"{family}-{non_layer}"
    assert_same(stored(out), wanted)
    layers = json.loads((out / "layer_swap_plan.json").read_text())["layers"]
    assert layers == [swap.of_layer(layer) for layer in range(LAYERS)]


@pytest.mark.slow
def test_slices_that_keep_the_depth_and_aligned_vocabularies_work_as_well(
    fallback: Any, experts: Any
) -> None:
    given = experts("llama")
    wanted = expected(SWAP, stored(given.task), stored(given.language))
    assert_same(stored(fallback.root / "sliced"), wanted)
    task, language = (stored(folder) for folder in fallback.words.values())
    assert_same(stored(fallback.root / "aligned"), expected(SWAP, task, language))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["by_magnitude", "by_layer", "by_module"])
def test_what_was_measured_reaches_the_kernel(name: str, fallback: Any) -> None:
    stream = stream_of(fallback.documents[str(fallback.root / name)])
    assert stream.measured is not None
    assert_same(stored(fallback.root / name), dict(stream.tensors()))


@pytest.mark.slow
def test_slices_that_change_the_depth_are_refused(fallback: Any) -> None:
    assert "REFUSED taller" in fallback.said
    assert "the slices give 8 layers" in fallback.said
    assert "whose planner layer_swap could not extend" in fallback.said
    assert fallback.said.count("REFUSED") == 1
    assert not (fallback.root / "taller").exists()


@pytest.mark.slow
def test_one_warning_says_what_is_lost(fallback: Any) -> None:
    warning = "mergekit's MergePlanner.plan_tensor is not the one of mergekit 0.1.5"
    assert fallback.log.count(warning) == 1
    assert "loads every expert for every tensor" in fallback.log
    assert fallback.log.count("delta_revert is not available: it needs the planner") == 1


@pytest.mark.slow
def test_a_method_that_cannot_work_is_withdrawn(fallback: Any) -> None:
    assert "methods layer_swap\n" in fallback.said
