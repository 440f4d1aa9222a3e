"""What config.json and the index say is what transformers reads; what is absurd is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems, ties
from layerswap_method.checkpoint.config import read_config
from layerswap_method.errors import InputError
from tests.standins.tuned import edited
from tests.standins.zoo import FAMILIES, make_config, make_model

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_is_what_transformers_reads(family, tmp_path):
    config = make_config(family)
    config.dtype = torch.bfloat16
    config.architectures = [FAMILIES[family].model]
    config.save_pretrained(tmp_path)
    found, theirs = read_config("model", tmp_path), AutoConfig.from_pretrained(tmp_path)
    text = theirs.get_text_config()
    assert found.architecture == FAMILIES[family].model
    assert (found.model_type, found.text_type) == (theirs.model_type, text.model_type)
    assert (found.num_hidden_layers, found.vocab_size) == (text.num_hidden_layers, text.vocab_size)
    assert (found.dtype, found.quantization) == ("bfloat16", None)
    tied = theirs.tie_word_embeddings or text.tie_word_embeddings
    assert found.tie_word_embeddings in (None, bool(tied))


SILENT = {"tie_word_embeddings": None, "num_hidden_layers": None, "n_layer": None}


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox", "mistral3_vl"])
def test_where_it_is_silent_the_files_tell(family, experts, tmp_path):
    folder = shutil.copytree(experts(family).base, tmp_path / "silent")
    silent = read_checkpoint("silent", edited(folder, **SILENT))
    assert (silent.config.num_hidden_layers, silent.config.tie_word_embeddings) == (None, None)
    assert silent.depth() == read_checkpoint("said", experts(family).base).depth() == 6
    assert ties(silent) == (family in ("gemma2", "gpt2"))


@pytest.mark.parametrize(
    ("changes", "dtype", "quantization"),
    [
        ({"dtype": None}, None, None),
        ({"dtype": None, "torch_dtype": "float16"}, "float16", None),
        ({"dtype": "torch.float32"}, "float32", None),
        ({"dtype": "auto"}, None, None),
        ({"quantization_config": {"quant_method": "gptq"}}, "bfloat16", "gptq"),
        ({"quantization_config": {"bits": 4}}, "bfloat16", "?"),
    ],
    ids=str,
)
def test_dtypes_and_quantisation(changes, dtype, quantization, experts, tmp_path):
    folder = shutil.copytree(experts("llama").base, tmp_path / "model")
    found = read_config("model", edited(folder, **changes))
    assert (found.dtype, found.quantization) == (dtype, quantization)


@pytest.mark.parametrize("text", ["[]", "{}", '{"model_type": 3}', "{", "[" * 200_000])
def test_what_is_no_config(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"^model: .*no readable config"):
        read_config("model", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 5},
        {"num_hidden_layers": 7},
        {"vocab_size": 10**12},
    ],
    ids=str,
)
def test_absurd_sizes_are_refused_at_once(changes, experts, tmp_path):
    """H5: a model of 14 kB that claimed 10^9 layers took the memory of the machine."""
    folder = edited(shutil.copytree(experts("llama").base, tmp_path / "odd"), **changes)
    (name,) = changes
    with pytest.raises(InputError, match=f"^odd: .*({name}|layers)"):
        read_checkpoint("odd", folder)


@pytest.fixture
def sharded(experts, tmp_path):
    folder = shutil.copytree(experts("llama", shard="9KB").base, tmp_path / "sharded")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def in_index(folder, edit):
    document = json.loads((folder / INDEX).read_text())
    edit(document["weight_map"])
    (folder / INDEX).write_text(json.dumps(document))


def test_shards_are_one_model(sharded, experts):
    whole = read_checkpoint("whole", experts("llama").base)
    found = read_checkpoint("sharded", sharded)
    assert found.shapes == whole.shapes
    in_index(sharded, lambda listed: listed.pop("lm_head.weight"))  # mergekit does not see it
    assert "lm_head.weight" not in read_checkpoint("sharded", sharded).tensors


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda f: next(f.glob("model-*")).unlink(), ["1 of ", "shards are missing", "model-"]),
        (
            lambda f: in_index(f, lambda m: m.update(x=m["lm_head.weight"])),
            ["names 1 tensors", "does not hold: x"],
        ),
        (
            lambda f: in_index(f, lambda m: m.update(x="../secret.safetensors")),
            ["'../secret.safetensors'", "no file name"],
        ),
        (lambda f: in_index(f, lambda m: m.update(x="/etc/passwd")), ["'/etc/passwd'"]),
        (lambda f: in_index(f, lambda m: m.update(x="x" * 5000)), ["xxx", "no file name"]),
        (lambda f: in_index(f, lambda m: m.update(x=3)), ["'3'", "no file name"]),
        (lambda f: in_index(f, dict.clear), [INDEX, "weight_map"]),
        (lambda f: (f / INDEX).write_text("[" * 100_000), [INDEX, "cannot be read"]),
        (lambda f: (f / INDEX).write_text("[]"), [INDEX, "weight_map"]),
        (
            lambda f: shutil.copyfile(next(f.glob("model-*")), f / FILE),
            [FILE, INDEX, "remove what is not"],
        ),
    ],
    ids=range(10),
)
def test_an_index_that_is_wrong(damage, parts, sharded):
    """H4b (a single file beside it), H8 (paths) and H12 (depth and length) among them."""
    damage(sharded)
    with pytest.raises(InputError) as caught:
        read_checkpoint("odd", sharded)
    assert caught.value.message.startswith("odd: ")
    assert all(part in caught.value.message for part in parts), caught.value.message


def test_links_lead_into_the_folder_or_the_hubs_cache(experts, tmp_path):
    """H8: weights were read wherever a link led."""
    source = experts("llama").base
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert read_checkpoint("hub", snapshot).shapes
    odd = shutil.copytree(source, tmp_path / "odd")
    (odd / FILE).rename(odd / "weights")
    (odd / FILE).symlink_to("weights")
    assert read_checkpoint("inside", odd).shapes
    (odd / FILE).unlink()
    (odd / FILE).symlink_to(blobs / FILE)
    with pytest.raises(InputError, match=f"odd: .*{FILE} is a link to .*blobs"):
        read_checkpoint("odd", odd)


def test_pickles_and_empty_folders_are_refused(experts, tmp_path):
    folder = shutil.copytree(experts("llama").base, tmp_path / "model")
    (folder / FILE).unlink()
    with pytest.raises(InputError, match=f"no {FILE}"):
        read_checkpoint("model", folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*save_pretrained"):
        read_checkpoint("model", folder)
    with pytest.raises(InputError, match="config"):
        read_checkpoint("model", tmp_path / "nowhere")


def test_a_head_of_its_own_under_a_config_that_ties_it(tmp_path):
    """transformers 5 would not tie it, and other programs would."""
    folder = make_model("llama_tied", tmp_path / "tied", 1)
    held = load_file(folder / FILE)
    for number, change in enumerate((0, 1)):
        head = held["model.embed_tokens.weight"].clone()
        head[-1, -1] += change
        save_file({**held, "lm_head.weight": head}, folder / FILE, {"format": "pt"})
        problems = list(own_problems(read_checkpoint("tied", folder)))
        assert len(problems) == number
        assert all("lm_head.weight" in problem for problem in problems)
