"""`tokenizer:` and `chat_template:`: rows follow their tokens, layers are pruned as ever."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.zoo import LAYERS, VOCAB, make_model

EXTRA = ("xx", "yy", "zz")
SWAP = Swap(LAYERS)
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="session")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return experts with tokenizers; the language expert has three tokens more, in other rows."""
    root = tmp_path_factory.mktemp("speakers")
    tokens = {
        "base": words(VOCAB),
        "task": words(VOCAB),
        "language": [*EXTRA, *words(VOCAB)],
    }
    for seed, (name, vocabulary) in enumerate(tokens.items()):
        make_model("llama", root / name, seed, vocab_size=len(vocabulary))
        settings = {"chat_template": TEMPLATE} if name == "task" else {}
        save_word_tokenizer(root / name, vocabulary, **settings)
    return SimpleNamespace(**{name: root / name for name in tokens}, tokens=tokens, folders=root)


def ids(folder: Path) -> dict[str, int]:
    """Return token -> id of a merged tokenizer."""
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(folder).get_vocab())


def rows(speakers: SimpleNamespace, role: str, table: str, order: dict[str, int]) -> torch.Tensor:
    """Return a model's table in the merged order; a token it lacks has the row of who has it."""
    own = {token: i for i, token in enumerate(speakers.tokens[role])}
    tables = {name: stored(getattr(speakers, name))[table] for name in speakers.tokens}
    result = torch.empty(len(order), tables[role].shape[1], dtype=tables[role].dtype)
    for token, row in order.items():
        owner = role if token in own else "language"
        result[row] = tables[owner][speakers.tokens[owner].index(token)]
    return result


def oracle(speakers: SimpleNamespace, swap: Swap, order: dict[str, int]) -> dict[str, Any]:
    """Return the merge: layers by the plan, tables aligned by token, then by `non_layer`."""
    both = {role: stored(getattr(speakers, role)) for role in ("task", "language", "base")}
    plain = {
        role: {name: t for name, t in held.items() if name not in TABLES}
        for role, held in both.items()
    }
    merged = expected(swap, plain["task"], plain["language"], plain["base"])
    for table in TABLES:
        aligned = {role: rows(speakers, role, table, order) for role in both}
        merged[table] = (
            average(aligned["task"], aligned["language"], swap)
            if swap.non_layer == "average"
            else aligned[swap.non_layer]
        )
    return merged


@pytest.mark.parametrize("source", ["base", "union"])
@pytest.mark.parametrize("non_layer", ["average", "task", "language", "base"])
def test_rows_follow_their_tokens(
    source: str, non_layer: str, speakers: Any, loads: Any, tmp_path: Path
) -> None:
    swap = Swap(LAYERS, non_layer=non_layer)
    document = recipe(
        roles(speakers), swap.parameters(), speakers.base, tokenizer={"source": source}
    )
    out = merge(document, tmp_path / "merged")
    order = ids(out)
    assert len(order) == VOCAB + (len(EXTRA) if source == "union" else 0)
    assert_same(stored(out), oracle(speakers, swap, order))
    loads(out)


def test_a_token_sourced_from_a_model_that_the_table_does_not_come_from(
    speakers: Any, tmp_path: Path
) -> None:
    # Pruning the language expert from the embeddings would make mergekit fail here.
    swap = Swap(LAYERS, non_layer="task")
    tokens = {"w1": {"source": str(speakers.language), "force": True}}
    document = recipe(
        roles(speakers),
        swap.parameters(),
        speakers.base,
        tokenizer={"source": "base", "tokens": tokens},
    )
    out = merge(document, tmp_path / "merged")
    wanted = oracle(speakers, swap, ids(out))
    for table in TABLES:
        row = stored(speakers.language)[table][speakers.tokens["language"].index("w1")]
        wanted[table][ids(out)["w1"]] = row
    assert_same(stored(out), wanted)


def test_layers_are_pruned_with_a_tokenizer_too(
    speakers: Any, reads: list[tuple[str, str]], tmp_path: Path
) -> None:
    swap = Swap(LAYERS, non_layer="task")
    document = recipe(
        roles(speakers), swap.parameters(), speakers.base, tokenizer={"source": "union"}
    )
    merge(document, tmp_path / "merged")
    wanted = {(role, table) for role in ("task", "language", "base") for table in TABLES}
    for name in stored(speakers.task):
        if name in TABLES:
            continue
        source = swap.of_tensor(name)
        for role in ("task", "language") if source == "average" else (source,):
            wanted.add((role, name))
    assert set(reads) == wanted


def test_tables_are_rounded_once_to_the_dtype(tmp_path: Path) -> None:
    folders = {}
    for seed, role in enumerate(("task", "language")):
        folders[role] = make_model("llama", tmp_path / role, seed, dtype=torch.float32)
        save_word_tokenizer(folders[role], words(VOCAB))
    document = recipe(folders, SWAP.parameters(), tokenizer={"source": "base"}, dtype="bfloat16")
    out = merge(document, tmp_path / "merged")
    task, language = stored(folders["task"]), stored(folders["language"])
    assert_same(stored(out), expected(SWAP, task, language, dtype=torch.bfloat16))


def test_the_older_tokenizer_source_works_as_well(speakers: Any, tmp_path: Path) -> None:
    document = recipe(roles(speakers), SWAP.parameters(), speakers.base, tokenizer_source="union")
    out = merge(document, tmp_path / "merged")
    assert_same(stored(out), oracle(speakers, SWAP, ids(out)))


def test_different_vocabularies_without_tokenizer_are_refused(
    speakers: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError,
        match=r"different vocabularies: .*\[96, 16\] against \[99, 16\].*add tokenizer:",
    ):
        merge(recipe(roles(speakers), SWAP.parameters()), tmp_path / "new" / "merged")
    assert not (tmp_path / "new").exists()


def test_truncated_vocabularies_have_the_rows_of_the_shortest(
    speakers: Any, loads: Any, tmp_path: Path
) -> None:
    # With non_layer: language the shorter tables are not averaged in, but they set the length.
    swap = Swap(LAYERS, non_layer="language")
    document = recipe(roles(speakers), swap.parameters(), speakers.base)
    out = merge(document, tmp_path / "merged", unsafe_truncate_embeddings=True)
    wanted = expected(swap, stored(speakers.task), stored(speakers.language))
    for table in TABLES:
        wanted[table] = wanted[table][:VOCAB]
    assert_same(stored(out), wanted)
    loads(out)


@pytest.mark.parametrize("template", ["auto", "chatml", TEMPLATE])
def test_chat_template(template: str, speakers: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    models = {"task": speakers.task, "language": speakers.base}
    document = recipe(models, SWAP.parameters(), chat_template=template)
    out = merge(document, tmp_path / "merged", copy_tokenizer=True)
    written = AutoTokenizer.from_pretrained(out).chat_template
    assert written is not None
    assert ("im_start" in written) if template == "chatml" else (written == TEMPLATE)
    assert_same(stored(out), expected(SWAP, stored(models["task"]), stored(models["language"])))


def test_the_bases_tokenizer_is_copied(speakers: Any, tmp_path: Path) -> None:
    models = {"task": speakers.task, "language": speakers.base}
    out = merge(recipe(models, SWAP.parameters()), tmp_path / "merged", copy_tokenizer=True)
    assert ids(out) == {token: i for i, token in enumerate(speakers.tokens["task"])}
    assert json.loads((out / "config.json").read_text())["vocab_size"] == VOCAB
