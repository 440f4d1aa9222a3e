"""What the hub says is checked before it is noted: one bad answer spoils nothing."""

import logging

import pytest
from huggingface_hub import constants

from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.stored import read_tensor
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.hub import downloads as downloads_module
from layerswap_method.hub import patience, transfer
from layerswap_method.hub.downloads import Downloads, download_choice
from layerswap_method.hub.partial import ranges_there
from layerswap_method.hub.ranges import size
from layerswap_method.recipe.references import find_model_files
from tests.hub.conftest import TASK, commit_of

LEFT = 1_500_000
"""Bytes at the end of each file that are not fetched: a whole one would be the library's."""


@pytest.fixture
def cache(hub, tmp_path, monkeypatch):
    """Return the hub's cache, empty, of this process, whose hub is the stand-in."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(transfer, "_WAIT_S", 0.01)
    return tmp_path / "cache"


def fetch(cache, download="ranges"):
    """Fetch all but the end of every file, and return the files."""
    downloads = Downloads(download, str(cache))
    folder = find_model_files(TASK, cache_dir=str(cache), hub=downloads).folder
    files = {file.name: file.resolve() for file in folder.glob("*.safetensors")}
    assert len(files) == 4
    downloads.fetch({file: [(0, file.stat().st_size - LEFT)] for file in files.values()})
    return files


def assert_right(hub, files):
    for name, file in files.items():
        right = (hub.root / TASK / commit_of(TASK) / name).read_bytes()
        assert file.read_bytes()[:-LEFT] == right[:-LEFT]


def first_weights(document):
    return next(file for file in document["siblings"] if "lfs" in file)


def with_size(value):
    return lambda document: first_weights(document).update(size=value)


def with_sha256(change):
    def changed(document):
        lfs = first_weights(document)["lfs"]
        lfs["sha256"] = change(lfs["sha256"])

    return changed


SIZES = [None, -1, 0, "12", 1.5, True, 10**30, 12, 2**40]
SHA256 = {
    "none": lambda text: None,
    "number": lambda text: 7,
    "junk": lambda text: "junk",
    "shorter": lambda text: text[:40],
    "longer": lambda text: text + "00",
    "another": lambda text: "0" * 64,
    "capitals": str.upper,
    "newline": lambda text: text + "\n",
}
LISTS = {
    **{f"size {value!r}": with_size(value) for value in SIZES},
    **{f"sha256 {name}": with_sha256(change) for name, change in SHA256.items()},
    "list null": lambda document: document.update(siblings=None),
}
HARMLESS = {"sha256 capitals", "sha256 newline"}


@pytest.mark.parametrize("name", LISTS)
def test_one_bad_list_of_files_is_asked_for_once_more(name, hub, cache, caplog):
    hub.odd_listings = [LISTS[name]]
    with caplog.at_level(logging.WARNING, "layerswap"):
        assert_right(hub, fetch(cache))
    assert not hub.odd_listings
    assert ("the hub is asked once more" in caplog.text) == (name not in HARMLESS)


@pytest.mark.parametrize("name", ["size None", "size 12", "sha256 another", "list null"])
def test_a_list_of_files_that_stays_bad_is_one_sentence_and_is_not_noted(name, hub, cache):
    hub.odd_listings = [LISTS[name]] * 2
    with pytest.raises(InputError, match=rf"layerswap cache --remove {TASK} lets you begin") as e:
        fetch(cache)
    assert "\n" not in e.value.message
    assert_right(hub, fetch(cache))


TAGS = {
    "another": lambda tag: '"' + "0" * 64 + '"',
    "capitals": str.upper,
    "weak": lambda tag: f"W/{tag}",
    "junk": lambda tag: "junk",
}


@pytest.mark.parametrize("name", TAGS)
def test_one_bad_tag_of_a_range_spoils_nothing(name, hub, cache):
    hub.odd_tags = [TAGS[name]]
    assert_right(hub, fetch(cache))
    assert_right(hub, fetch(cache))


@pytest.mark.parametrize("count", [1, 4, 5])
def test_ranges_that_are_packed_without_saying_so_are_fetched_again(count, hub, cache):
    hub.packed = count
    assert_right(hub, fetch(cache))
    assert hub.packed == 0


def test_a_damaged_note_of_the_files_is_named_and_made_again(hub, cache, caplog):
    fetch(cache)
    (record,) = cache.parent.glob("cache-layerswap/*/records/*.json")
    right = record.read_text()
    for text in ("", "[]", "{}", '{"files": {"model.safetensors": {"size": "x"}}}'):
        record.write_text(text)
        caplog.clear()
        assert_right(hub, fetch(cache))
        assert f"{record}: is damaged" in caplog.text
        assert record.read_text() == right


def test_a_bug_is_not_called_an_answer_of_the_hub(hub, cache, monkeypatch):
    monkeypatch.setattr(transfer, "split", lambda *_: None + 1)
    with pytest.raises(TypeError):
        fetch(cache)


@pytest.mark.parametrize("download", ["ranges", "whole"])
def test_a_server_that_asks_to_wait_for_ever_is_left(download, hub, cache):
    hub.busy, hub.retry_after = 10**6, 10**9
    with pytest.raises(LayerSwapError, match=r"asks to wait for 1000000000 s \(HTTP 503\), longer"):
        fetch(cache, download)
    hub.busy = 0
    fetch(cache)
    hub.busy = 10**6
    with pytest.raises(LayerSwapError, match=r"asks to wait for 1000000000 s \(HTTP 503\), longer"):
        list(Downloads("ranges", str(cache)).folder(f"{TASK}2", None).iterdir())


@pytest.mark.parametrize("download", ["ranges", "whole"])
def test_a_download_that_hardly_goes_on_is_left_with_a_sentence(download, hub, cache, monkeypatch):
    Downloads("ranges", str(cache)).folder(TASK, None)
    monkeypatch.setattr(patience, "PATIENCE_S", 0.5)
    hub.trickling = 10**6
    with pytest.raises(LayerSwapError, match=r"brought \d+ bytes in 0.5 s and was given up"):
        fetch(cache, download)
    hub.trickling = 0
    assert_right(hub, fetch(cache))


def test_ranges_that_are_refused_late_cost_no_more_than_the_files_that_lack_some(hub, cache):
    Downloads("ranges", str(cache)).folder(TASK, None)
    hub.forget()
    hub.ranges_left = 2
    downloads = Downloads("ranges", str(cache))
    folder = downloads.folder(TASK, None)
    files = [file.resolve() for file in sorted(folder.glob("*.safetensors"))]
    for file in files:
        downloads.fetch({file: [(0, file.stat().st_size - LEFT)]})
    sizes = [file.stat().st_size for file in files]
    assert [size(ranges_there(file)) for file in files[:2]] == [n - LEFT for n in sizes[:2]]
    assert [file.is_symlink() for file in files] == [False, False, True, True]
    assert_right(hub, {file.name: file for file in folder.glob("*.safetensors")})


def test_what_may_read_headers_only_downloads_nothing_whole(hub, cache):
    downloads = Downloads("whole", str(cache), headers_only=True)
    folder = downloads.folder(TASK, None)
    hub.ranges_left = 0
    hub.forget()
    tensors = read_checkpoint(TASK, folder).tensors
    with (
        downloads.fetching(),
        pytest.raises(LayerSwapError, match=f"; hf download {TASK} gets all of it"),
    ):
        read_tensor(tensors["model.layers.5.mlp.up_proj.weight"])
    hub.ranges_left, hub.without_ranges = None, False
    with downloads.fetching():
        read_tensor(tensors["model.layers.5.mlp.up_proj.weight"])
    assert not [*cache.rglob("*.safetensors")]


@pytest.mark.parametrize("download", ["ranges", "whole"])
def test_what_is_read_is_right_when_it_comes_with_the_whole_file(download, hub, cache, monkeypatch):
    """A file that was open before the whole one took its place would be read as zeros."""
    monkeypatch.setattr(downloads_module, "_LITTLE", 0)
    downloads = Downloads(download, str(cache))
    tensors = read_checkpoint(TASK, downloads.folder(TASK, None)).tensors
    hub.ranges_left = 0
    right = read_checkpoint(TASK, hub.root / TASK / commit_of(TASK)).tensors
    with downloads.fetching():
        for name in ("model.layers.5.mlp.up_proj.weight", "model.norm.weight"):
            assert read_tensor(tensors[name]).equal(read_tensor(right[name]))
    assert [*cache.rglob("*.safetensors")]


def test_a_wrong_choice_is_named_where_it_was_made(monkeypatch):
    with pytest.raises(InputError, match=r"^download 'rangse': is not valid; did you mean"):
        download_choice("rangse")
    monkeypatch.setenv("LAYERSWAP_DOWNLOAD", "hole")
    with pytest.raises(InputError, match=r"^LAYERSWAP_DOWNLOAD=hole: is not valid"):
        download_choice()
