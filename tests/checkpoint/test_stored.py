"""Headers, bytes, configs and indexes: read as safetensors and transformers do, or refused."""

import json
import os
import shutil
import struct
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save, save_file
from transformers import AutoConfig

from ablations.harmonize.fields import stated_fields
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems
from layerswap_method.checkpoint.config import read_config, read_document
from layerswap_method.checkpoint.stored import (
    FLOATS,
    TORCH_NAMES,
    check_unchanged,
    read_floats,
    read_header,
    read_rows,
    read_tensor,
    same_content,
    torch_dtype,
)
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.errors import InputError
from tests.standins.fine_tunes import edited, with_head, with_value
from tests.standins.model_families import FAMILIES, make_config, make_model

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.arange(4, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5),
    "number": torch.tensor(7, dtype=torch.int64),
}
GOOD = save(TENSORS, {"format": "pt"})
(LENGTH,) = struct.unpack("<Q", GOOD[:8])
HEADER = json.loads(GOOD[8 : 8 + LENGTH])
DATA = GOOD[8 + LENGTH :]


def packed(header, data=DATA):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def accepted(content, file):
    """Return whether the reader takes the file; fail unless safetensors then reads the same."""
    file.write_bytes(content)
    try:
        found = read_header(file)
    except InputError:
        return False
    theirs = dict(deserialize(content))
    assert list(found) == sorted(theirs)
    for name, tensor in found.items():
        assert (tensor.dtype, list(tensor.shape)) == (theirs[name]["dtype"], theirs[name]["shape"])
        assert content[tensor.offset : tensor.offset + tensor.nbytes] == theirs[name]["data"]
    return True


def changed(name, **entry):
    return {**HEADER, name: {**HEADER[name], **entry}}


def test_what_is_whole_is_read(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    assert accepted(packed({}, b""), file)
    assert accepted(packed(json.dumps(HEADER).encode() + b"   "), file)
    assert accepted(GOOD, file)
    link.symlink_to(file)
    found = read_header(link)
    assert found == read_header(file)
    assert all(torch.equal(read_tensor(found[name]), tensor) for name, tensor in TENSORS.items())
    assert read_rows(found["b"], slice(1, 2)).tolist() == [[3, 4, 5]]
    for dtype, torch_name in TORCH_NAMES.items():
        size = getattr(torch, torch_name).itemsize
        entry = {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * size]}
        assert accepted(packed({"x": entry}, bytes(3 * size)), file)
        assert read_header(file)["x"].itemsize == size


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_is_read_without_torch_as_with_it(name, tmp_path):
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    every = every.view(torch.float16) if name == "F16" else every.to(torch_dtype(TORCH_NAMES[name]))
    save_file({"x": every.view(256, 256)}, tmp_path / "file")
    stored = read_header(tmp_path / "file")["x"]
    assert stored.dtype == name
    for rows in (slice(None), slice(3, 7), slice(5, 5)):
        wanted = read_rows(stored, rows)
        wanted = wanted if name == "F64" else wanted.float()
        found = torch.from_numpy(read_floats(stored, rows))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


DAMAGED = [
    *(packed(changed("b", **e)) for e in ({"data_offsets": [0, 24]}, {"shape": [2, 4]})),
    packed(changed("b", dtype="F31")),
    packed({k: v for k, v in HEADER.items() if k != "a"}),
    packed([HEADER]),
    packed(b"[" * 200_000),
    *(GOOD[:size] for size in (0, 20, len(GOOD) - 1)),
    GOOD + b"\0",
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_what_lies_or_is_cut_short_is_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SafetensorError):
        deserialize(content)
    with pytest.raises(InputError, match=r"file: is damaged.*download or copy it again"):
        read_header(tmp_path / "file")
    with pytest.raises(InputError, match=r"base: shard is damaged.*No such file"):
        read_header(tmp_path / "gone", "base: shard")


NUMBERS = st.one_of(st.integers(-2, 40), st.sampled_from([1 << 31, 1 << 64]), st.floats())
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*TORCH_NAMES, "F31", "f32", None]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, max_size=3),
    }
)
EDITS = st.tuples(st.integers(0, len(GOOD)), st.integers(0, 3), st.binary(max_size=3))
FUZZ = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@FUZZ
@given(st.dictionaries(st.sampled_from([*HEADER, "new", "é"]), ENTRIES), st.lists(EDITS))
def test_any_header_and_any_damage_is_read_alike_or_refused(tmp_path, entries, edits):
    accepted(packed({**HEADER, **entries}), tmp_path / "file")
    content = GOOD
    for place, length, new in edits:
        content = content[:place] + new + content[place + length :]
    assert accepted(content, tmp_path / "file") or content != GOOD


def test_a_file_with_other_content_of_the_same_size_and_time_is_noticed(tmp_path):
    """Experts of one architecture have one size, and archives restore times."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(GOOD)
    at, times = read_header(file)["b"], file.stat()
    stamp = at.stamp
    check_unchanged(file, stamp)
    other.write_bytes(GOOD[:-1] + b"x")
    for write in (lambda: file.write_bytes(GOOD[:-1] + b"x"), lambda: other.replace(file)):
        write()
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (len(GOOD), times.st_mtime_ns)
        for read in (lambda: check_unchanged(file, stamp), lambda: read_tensor(at)):
            with pytest.raises(InputError, match="rewritten"):
                read()
    file.unlink()
    with pytest.raises(InputError, match="gone"):
        read_tensor(at)


def test_content_is_compared_byte_for_byte(tmp_path):
    same, long = torch.randn(700, 600), torch.randn(700, 600)
    long[:-1] = same[:-1]
    held = {"a": same, "b": same.clone(), "c": long, "d": same.clone().view(600, 700)}
    save_file(held, tmp_path / "file")
    at = read_header(tmp_path / "file")
    assert [same_content(at["a"], at[name]) for name in "bcd"] == [True, False, False]


def test_what_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.open", Mock(side_effect=PermissionError))  # root reads all
    with pytest.raises(InputError, match="base: shard may not be read by this user; correct its"):
        read_header(tmp_path / "file", "base: shard")


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


STATED = [
    # changes of the config, dtype, quantisation
    ({"dtype": None}, None, None),
    ({"dtype": None, "torch_dtype": "float16"}, "float16", None),
    ({"dtype": "torch.float32"}, "float32", None),
    ({"dtype": "auto"}, None, None),
    ({"quantization_config": {"quant_method": "gptq"}}, "bfloat16", "gptq"),
    ({"quantization_config": {"bits": 4}}, "bfloat16", "?"),
    ({"architectures": {"a": 1}}, "bfloat16", None),
]


def test_dtypes_and_quantisation(experts, tmp_path):
    for number, (changes, *wanted) in enumerate(STATED):
        folder = shutil.copytree(experts("llama").base, tmp_path / str(number))
        found = read_config("model", edited(folder, **changes))
        assert [found.dtype, found.quantization] == wanted
        assert stated_fields(read_document("model", folder))["layers"] == 6


NO_CONFIG = ["[]", "{}", '{"model_type": 3}', '{"model_type": "a",}', "\ufeff{}", "[" * 200_000]


@pytest.mark.parametrize("text", NO_CONFIG)
def test_what_is_no_config(text, tmp_path):
    """It was said to be a model's folder that layerswap evaluate takes."""
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    wanted = r"^model: .*no readable config: .*; correct config\.json, or download it again$"
    with pytest.raises(InputError, match=wanted):
        read_config("model", tmp_path)


ABSURD = [("num_hidden_layers", number) for number in (10**9, -1, 5, 7)] + [("vocab_size", 10**12)]


@pytest.mark.parametrize(("name", "number"), ABSURD)
def test_absurd_sizes_are_refused_at_once(name, number, experts, tmp_path):
    """A model of 14 kB that claimed 10^9 layers took the memory of the machine."""
    folder = shutil.copytree(experts("llama").base, tmp_path / "odd")
    with pytest.raises(InputError, match=f"^odd: .*({name}|layers)"):
        read_checkpoint("odd", edited(folder, **{name: number}))


@pytest.fixture
def sharded(experts, tmp_path):
    folder = shutil.copytree(experts("llama", shard="9KB").base, tmp_path / "sharded")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def in_index(edit):
    def damage(folder):
        document = json.loads((folder / INDEX).read_text())
        edit(document["weight_map"])
        (folder / INDEX).write_text(json.dumps(document))

    return damage


def naming(file):
    return in_index(lambda listed: listed.update(x=file or listed["lm_head.weight"]))


def test_shards_are_one_model(sharded, experts):
    whole, found = (read_checkpoint("x", at) for at in (experts("llama").base, sharded))
    assert found.shapes == whole.shapes


def test_what_an_index_omits_is_named_and_added_as_advised(sharded):
    file = read_checkpoint("sharded", sharded).tensors["lm_head.weight"].file.name
    in_index(lambda listed: listed.pop("lm_head.weight"))(sharded)  # mergekit does not see it
    checkpoint = read_checkpoint("sharded", sharded)
    assert "lm_head.weight" not in checkpoint.tensors
    (problem,) = own_problems(checkpoint)
    assert "hold 1 tensors that model.safetensors.index.json does not name (lm_head.w" in problem
    in_index(lambda listed: listed.update({"lm_head.weight": file}))(sharded)
    assert not [*own_problems(read_checkpoint("sharded", sharded))]


def test_what_no_file_holds_is_left_out_where_it_is_no_part_of_the_text_model(sharded):
    in_index(lambda listed: listed.update({"mtp.fc.weight": listed["lm_head.weight"]}))(sharded)
    assert "mtp.fc.weight" not in read_checkpoint("sharded", sharded).tensors
    naming(None)(sharded)
    with pytest.raises(InputError, match="remove these entries from the index"):
        read_checkpoint("sharded", sharded)
    in_index(lambda listed: listed.pop("x"))(sharded)
    assert read_checkpoint("sharded", sharded).tensors


BAD_INDEX = [
    (lambda f: next(f.glob("model-*")).unlink(), ["1 of ", "shards are missing", "model-"]),
    (naming(None), ["names 1 tensors", "does not hold: x"]),
    (naming("../secret.safetensors"), ["'../secret.safetensors'", "no file name"]),
    (naming("/etc/passwd"), ["'/etc/passwd'"]),
    (naming("x" * 5000), ["xxx", "no file name"]),
    (naming(3), ["'3'", "no file name"]),
    (in_index(dict.clear), [INDEX, "weight_map"]),
    (lambda f: (f / INDEX).write_text("[" * 100_000), [INDEX, "cannot be read"]),
    (lambda f: (f / INDEX).write_text("[]"), [INDEX, "weight_map"]),
    (lambda f: shutil.copy(next(f.glob("model-*")), f / FILE), [FILE, INDEX, "remove what is not"]),
]


@pytest.mark.parametrize(("damage", "parts"), BAD_INDEX, ids=range(len(BAD_INDEX)))
def test_an_index_that_is_wrong(damage, parts, sharded):
    """A single file beside it, paths that lead out, depth and length among them."""
    damage(sharded)
    with pytest.raises(InputError) as caught:
        read_checkpoint("odd", sharded)
    assert caught.value.message.startswith("odd: ")
    assert all(part in caught.value.message for part in parts), caught.value.message


def test_weights_may_be_links_and_what_an_output_gets_a_copy_of_may_not(experts, tmp_path):
    """Clusters keep weights elsewhere; any other file of this user could be behind a config."""
    source = experts("llama").base
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert read_checkpoint("hub", snapshot).shapes
    odd = shutil.copytree(source, tmp_path / "odd")
    (odd / FILE).unlink()
    (odd / FILE).symlink_to(blobs / FILE)
    assert read_checkpoint("odd", odd).shapes == read_checkpoint("hub", snapshot).shapes
    shutil.copyfile(source / "config.json", odd / "own.json")
    (odd / "config.json").unlink()
    (odd / "config.json").symlink_to("own.json")
    assert read_checkpoint("inside", odd).shapes
    (odd / "config.json").unlink()
    (odd / "config.json").symlink_to(blobs / "config.json")
    with pytest.raises(InputError, match=r"odd: .*config\.json is a link to .*blobs"):
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
    same = with_head(make_model("llama_tied", tmp_path / "tied", 1), tmp_path / "same")
    own = with_value(same, tmp_path / "own", "lm_head.weight", 9)
    assert not [*own_problems(read_checkpoint("same", same))]
    (problem,) = own_problems(read_checkpoint("own", own))
    assert "lm_head.weight" in problem
