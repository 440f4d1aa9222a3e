"""Recipes in mergekit's executor: `tokenizer:`, `chat_template:`, adapters that are no LoRA."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from layerswap_method.errors import InputError, LayerSwapError
from tests.mergekit_plugin.conftest import NUM_LAYERS, VOCAB, save_llama
from tests.standins.merging import merge, recipe, revert_recipe, roles
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import train_adapter, uneven

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")

EXTRA = ("xx", "yy", "zz")
SWAP = Swap(NUM_LAYERS)
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """Return experts with tokenizers; the language expert has three tokens more, in other rows."""
    root = tmp_path_factory.mktemp("speakers")
    tokens = {"base": words(VOCAB), "task": words(VOCAB), "language": [*EXTRA, *words(VOCAB)]}
    for seed, (name, vocabulary) in enumerate(tokens.items()):
        save_llama(root / name, seed, vocab_size=len(vocabulary))
        settings = {"chat_template": TEMPLATE} if name == "task" else {}
        save_word_tokenizer(root / name, vocabulary, **settings)
    return SimpleNamespace(**{name: root / name for name in tokens}, tokens=tokens)


def ids(folder):
    """Return token -> id of a merged tokenizer."""
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(folder).get_vocab())


def rows(speakers, role, table, order):
    """Return a model's table in the merged order; a token it lacks has the row of who has it."""
    tables = {name: stored(getattr(speakers, name))[table] for name in speakers.tokens}
    result = torch.empty(len(order), tables[role].shape[1], dtype=tables[role].dtype)
    for token, row in order.items():
        owner = role if token in speakers.tokens[role] else "language"
        result[row] = tables[owner][speakers.tokens[owner].index(token)]
    return result


def aligned(speakers, swap, order):
    """Return the merge: layers by the plan, tables aligned by token, then by `non_layer`."""
    models = {role: stored(getattr(speakers, role)) for role in ("task", "language", "base")}
    plain = [{n: t for n, t in held.items() if n not in TABLES} for held in models.values()]
    merged = expected(swap, *plain)
    for table in TABLES:
        tables = {role: rows(speakers, role, table, order) for role in models}
        merged[table] = (
            average(tables["task"], tables["language"], swap)
            if swap.non_layer == "average"
            else tables[swap.non_layer]
        )
    return merged


@pytest.mark.parametrize(
    ("tokenizer", "non_layer"),
    [
        ({"tokenizer": {"source": "base"}}, "average"),
        ({"tokenizer": {"source": "base"}}, "language"),
        *(({"tokenizer": {"source": "union"}}, n) for n in ("average", "task", "language", "base")),
        ({"tokenizer_source": "union"}, "average"),
        ({"tokenizer": {"source": "base", "tokens": "w1"}}, "task"),
    ],
)
def test_rows_follow_their_tokens(tokenizer, non_layer, speakers, loads, tmp_path, caplog):
    swap = Swap(NUM_LAYERS, non_layer=non_layer)
    forced = tokenizer.get("tokenizer", {}).get("tokens")
    if forced:
        source = {"source": str(speakers.language), "force": True}
        tokenizer = {"tokenizer": {"source": "base", "tokens": {forced: source}}}
    document = recipe(roles(speakers), swap.parameters(), speakers.base, **tokenizer)
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document, tmp_path / "merged", quiet=False)
    assert f"mergekit's executor merges this recipe: it has {next(iter(tokenizer))}:" in caplog.text
    order = ids(out)
    assert len(order) == VOCAB + len(EXTRA) * ("union" in str(tokenizer))
    wanted = aligned(speakers, swap, order)
    for table in TABLES if forced else ():
        held = stored(speakers.language)[table]
        wanted[table][order[forced]] = held[speakers.tokens["language"].index(forced)]
    assert_same(stored(out), wanted)
    loads(out)
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record["layers"] == [swap.of_layer(layer) for layer in range(NUM_LAYERS)]


def test_truncated_vocabularies_have_the_rows_of_the_shortest(speakers, loads, tmp_path):
    swap = Swap(NUM_LAYERS, non_layer="language")
    document = recipe(roles(speakers), swap.parameters(), speakers.base)
    out = merge(document, tmp_path / "merged", unsafe_truncate_embeddings=True)
    wanted = expected(swap, stored(speakers.task), stored(speakers.language))
    assert_same(stored(out), wanted | {table: wanted[table][:VOCAB] for table in TABLES})
    loads(out)


@pytest.mark.parametrize("template", ["auto", "chatml", TEMPLATE])
def test_chat_templates(template, speakers, tmp_path):
    from transformers import AutoTokenizer

    models = {"task": speakers.task, "language": speakers.base}
    document = recipe(models, SWAP.parameters(), chat_template=template)
    out = merge(document, tmp_path / "merged", copy_tokenizer=True)
    written = AutoTokenizer.from_pretrained(out).chat_template
    assert ("im_start" in written) if template == "chatml" else (written == TEMPLATE)
    assert_same(stored(out), expected(SWAP, stored(models["task"]), stored(models["language"])))


@pytest.mark.parametrize(
    "parameters",
    [
        {"weighting": "magnitude", "language_weight": 2.0, "layer_norms": "average"},
        {"placement": "delta_share", "delta_unit": "module", "delta_dominance": 0.15},
        {"weighting": "magnitude", "placement": "delta_share", "delta_blend": 0.25},
        {"placement": "middle", "bottom_layers": 2, "top_layers": 1, "swap_modules": "mlp"},
    ],
)
def test_what_was_measured_is_handed_to_the_kernel(parameters, tuned, tmp_path, caplog):
    """The tensors are those of the merge from file to file, which has an oracle of its own."""
    models = {"task": [tuned["math"], tuned["math_2"]], "language": tuned["swahili"]}
    document = recipe(models, parameters, tuned["base"], dtype="float32")
    document["models"][0]["parameters"]["weight"] = 3
    files = merge(document, tmp_path / "files")
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document | {"tokenizer": {"source": "base"}}, tmp_path / "out", quiet=False)
    assert_same(stored(out), stored(files))
    record, wanted = (json.loads((f / "layer_swap_plan.json").read_text()) for f in (out, files))
    assert ("vocabulary rows are compared as they are stored" in caplog.text) == (
        "deltas" in wanted
    )
    record.get("deltas", {}).pop("note", None)
    assert record == wanted
    for text in [(out / name).read_text() for name in ("README.md", "mergekit_config.yml")]:
        assert "weight: 3" in text
        assert f"{next(iter(parameters))}: {next(iter(parameters.values()))}" in text
        assert "plan:" not in text.partition("### What was merged")[0], "a kernel's parameter"


@pytest.mark.parametrize(
    "parameters",
    [
        {"keep_fraction": 0.4, "bottom_layers": 1},
        {"threshold": 0.01, "revert_modules": "norm"},
        {"revert_layers": "3", "top_layers": 1},
    ],
)
def test_reverts_in_the_executor(parameters, experts, tmp_path):
    expert = uneven(experts.base, tmp_path / "expert", 0.05)
    document = revert_recipe(expert, experts.base, parameters)
    files = merge(document, tmp_path / "files")
    chatml = document | {"chat_template": "chatml"}
    out = merge(chatml, tmp_path / "out", copy_tokenizer=True)
    assert_same(stored(out), stored(files))
    records = [json.loads((f / "delta_revert_plan.json").read_text()) for f in (out, files)]
    assert records[0] == records[1]
    assert "im_start" in (out / "chat_template.jinja").read_text()


def with_dora(base, adapter):
    """Return base + DoRA in float64: m * (W + s B A) / ||W + s B A||, norms over the inputs."""
    weights = {name: tensor.double() for name, tensor in stored(base).items()}
    parts = {
        name.removeprefix("base_model.model."): tensor.double()
        for name, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    downs = [name for name in parts if "lora_A" in name]
    assert len(downs) == NUM_LAYERS
    for name in downs:
        target = name.replace("lora_A.weight", "weight")
        moved = weights[target] + 3 * parts[name.replace("lora_A", "lora_B")] @ parts[name]
        size = parts[name.replace("lora_A.weight", "lora_magnitude_vector")]
        weights[target] = size[:, None] * moved / moved.norm(dim=1, keepdim=True)
    return weights


def test_dora_adapters_are_merged_anew_every_time(tuned, tmp_path, caplog):
    """mergekit alone takes a copy that it has made before, however the adapter has changed."""
    adapter, cache = tmp_path / "adapter", tmp_path / "cache"
    base = tuned["math_2"]
    train_adapter(base, adapter, r=2, lora_alpha=6, use_dora=True, target_modules=["up_proj"])
    models = {"task": f"{base}+{adapter}", "language": tuned["swahili"]}
    document = recipe(models, SWAP.parameters(), base)
    file, seen = adapter / "adapter_model.safetensors", []
    for factor in (1.0, 3.0):
        factors = {n: t * factor if "lora_B" in n else t for n, t in load_file(file).items()}
        save_file(factors, file, {"format": "pt"})
        with caplog.at_level(logging.INFO, "layerswap"):
            options = {"lora_merge_cache": str(cache), "quiet": False}
            found = stored(merge(document, tmp_path / f"out{factor}", **options))
        task, language = with_dora(base, adapter), stored(tuned["swahili"])
        for name, tensor in task.items():
            source = SWAP.of_tensor(name)
            both = (tensor + language[name].double()) / 2
            wanted = {"task": tensor, "language": language[name].double(), "average": both}[source]
            step = 4 * torch.finfo(torch.float32).eps * wanted.abs().max()
            assert (found[name].double() - wanted).abs().max() <= step, name
        seen.append(found["model.layers.4.mlp.up_proj.weight"])
    assert not torch.equal(*seen)
    assert "is more than low-rank changes" in caplog.text
    assert not list(cache.iterdir())
    with pytest.raises(InputError, match=r"--lora-merge-cache .*: cannot be made"):
        merge(document, tmp_path / "out", lora_merge_cache=str(file))
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_does_not_fit_is_one_message(tuned, tmp_path):
    adapter = tmp_path / "adapter"
    train_adapter(tuned["base"], adapter, r=2, use_dora=True, target_modules=["up_proj"])
    file = adapter / "adapter_model.safetensors"
    save_file({n: t[:1].contiguous() for n, t in load_file(file).items()}, file, {"format": "pt"})
    models = {"task": f"{tuned['base']}+{adapter}", "language": tuned["swahili"]}
    with pytest.raises(LayerSwapError, match="size mismatch"):
        merge(recipe(models), tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_what_fails_inside_mergekit_leaves_nothing(experts, merge, tmp_path):
    root = shutil.copytree(experts.root, tmp_path / "damaged")
    for name in ("base", "task", "language"):
        (root / name / "tokenizer.json").write_text("{")  # it is there, and is none
    document = recipe(
        {"task": root / "task", "language": root / "language"},
        SWAP.parameters(),
        root / "base",
        tokenizer={"source": "base"},
    )
    mine = tmp_path / "out" / "merged" / "mergekit_config.yml"
    for is_there in (False, True):
        if is_there:
            mine.parent.mkdir(parents=True)
            mine.write_text("mine")
        result = merge(document)
        assert result.exit_code == 1, result.output
        assert result.output.startswith("Error: mergekit failed, and nothing was written: ")
        assert "add -v for the traceback" in result.output
        left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        assert left == ([mine] if is_there else [])


def test_a_model_written_anew_between_two_merges_is_read_anew(tmp_path):
    """mergekit holds every checkpoint of a process open under its reference."""
    folders = {role: tmp_path / role for role in ("task", "language")}
    for seed in (0, 7):
        for shift, folder in enumerate(folders.values()):
            shutil.rmtree(folder, ignore_errors=True)
            save_llama(folder, seed + shift)
        out = merge(
            recipe(folders, SWAP.parameters()), tmp_path / f"merged-{seed}", clone_tensors=True
        )
        assert_same(stored(out), expected(SWAP, *(stored(f) for f in folders.values())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"source": "base"}}, r"has no tokenizer .*, which tokenizer: needs"),
        ({"tokenizer_source": "union"}, r"has no tokenizer .*, which tokenizer: needs"),
        ({"chat_template": "chatml"}, r"has no tokenizer .*, which chat_template: needs"),
        ({"chat_template": "chatlm"}, "did you mean 'chatml'"),
    ],
)
def test_what_would_fail_after_the_merge_is_said_before(changes, message, tmp_path):
    folders = {
        role: save_llama(tmp_path / role, seed) for seed, role in enumerate(("task", "language"))
    }
    document = recipe(folders, SWAP.parameters(), **changes)
    with pytest.raises(InputError, match=message):
        merge(document, tmp_path / "new" / "out", copy_tokenizer=True)
    assert not (tmp_path / "new").exists()


def test_the_output_is_never_an_input(experts, tmp_path):
    task = Path(shutil.copytree(experts.task, tmp_path / "task"))
    before = stored(task)
    document = recipe({"task": task, "language": experts.language}, SWAP.parameters())
    for options in ({}, {"clone_tensors": True}):
        with pytest.raises(InputError, match="is one of the merge's inputs"):
            merge(document, task / "." / "x" / "..", **options)
    assert_same(stored(task), before)
