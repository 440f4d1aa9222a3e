"""Tokens in every form that transformers reads, compared between checkpoints one by one."""

import base64
import io
import json
import shutil

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, XLMRobertaTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.mistral import convert_tekken_tokenizer

from ablations.models.compat import check_compatibility
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.tokens import read_vocabulary
from layerswap_method.checkpoint.vocabulary import token_conflicts, tokens_without_rows
from layerswap_method.errors import InputError
from tests.standins.fine_tunes import edited, tune
from tests.standins.model_families import make_model

TEXT = [
    f"la rue {word} und mata {word[::-1]}" for word in ["wasser", "agua", "maji", "água", "水"]
] * 3
ROWS = 290
WORDS = ["<unk>", "<s>", "</s>", "the", "of", "and", "to", "in", "is", "was", "for", "that"]


def as_json(folder, swapped=()):
    """Write byte-level BPE as tokenizer.json; `swapped` are two ids that change places."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=ROWS, show_progress=False)
    document = json.loads(tokenizer.to_str())
    by_id = {swap(i, swapped): token for token, i in document["model"]["vocab"].items()}
    document["model"]["vocab"] = {by_id[i]: i for i in sorted(by_id)}
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")


def swap(number, swapped):
    return swapped[1 - swapped.index(number)] if number in swapped else number


def as_merges(folder, swapped=()):
    as_json(folder, swapped)
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]), encoding="utf-8")


def byte_tokens(folder, swapped):
    """Return the bytes of every token of `as_json`, by id, and leave no file."""
    as_json(folder, swapped)
    vocabulary = read_vocabulary("model", folder).tokens
    (folder / "tokenizer.json").unlink()
    codes = {character: byte for byte, character in bytes_to_unicode().items()}
    ids = sorted(vocabulary, key=vocabulary.get)
    return [base64.b64encode(bytes(codes[c] for c in token)).decode() for token in ids]


def as_tiktoken(folder, swapped=(), name="qwen.tiktoken"):
    lines = [f"{token} {number}" for number, token in enumerate(byte_tokens(folder, swapped))]
    (folder / name).write_text("\n".join(lines) + "\n")


def as_tekken(folder, swapped=()):
    tokens = byte_tokens(folder, swapped)[:-4]  # the last ones are beyond the stated size
    special = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(WORDS[:3])]
    document = {
        "config": {
            "pattern": r"\p{L}+|\s+|.",
            "default_vocab_size": len(tokens) - 10 + 5,
            "default_num_special_tokens": 5,
        },
        "vocab": [
            {"rank": i, "token_bytes": token, "token_str": None} for i, token in enumerate(tokens)
        ],
        "special_tokens": special,
    }
    (folder / "tekken.json").write_text(json.dumps(document))


def as_pieces(folder, swapped=(), name="tokenizer.model", kind="bpe"):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=written,
        vocab_size=60,
        minloglevel=2,
        model_type=kind,
        hard_vocab_limit=False,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    pieces = [model.pieces[swap(i, swapped)] for i in range(len(model.pieces))]
    moved = sentencepiece_model_pb2.ModelProto()
    moved.CopyFrom(model)
    del moved.pieces[:]
    moved.pieces.extend(pieces)
    (folder / name).write_bytes(moved.SerializeToString())


def as_words(folder, swapped=()):
    words = [WORDS[swap(i, swapped)] for i in range(len(WORDS))]
    (folder / "vocab.txt").write_text("\n".join(words))


def as_fairseq(folder, swapped=()):
    as_pieces(folder, swapped, "sentencepiece.bpe.model", "unigram")


def as_old_tiktoken(folder, swapped=()):
    as_tiktoken(folder, swapped, "tokenizer.model")


FORMS = (
    as_json,
    as_merges,
    as_pieces,
    as_fairseq,
    as_tekken,
    as_tiktoken,
    as_old_tiktoken,
    as_words,
)


@pytest.mark.parametrize(
    ("form", "read"),
    [
        (as_json, AutoTokenizer.from_pretrained),
        (as_merges, GPT2Tokenizer.from_pretrained),
        (as_pieces, LlamaTokenizer.from_pretrained),
        (as_fairseq, XLMRobertaTokenizer.from_pretrained),
        (as_tekken, lambda folder: convert_tekken_tokenizer(folder / "tekken.json")),
    ],
)
def test_tokens_have_the_ids_that_transformers_gives_them(form, read, tmp_path):
    form(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokens = read_vocabulary("model", tmp_path).tokens
    by_transformers = read(tmp_path).get_vocab()
    assert len(tokens) > 20
    shared = {token: by_transformers[token] for token in tokens if token in by_transformers}
    assert shared == {token: tokens[token] for token in shared}
    assert len(tokens) - len(shared) <= 2  # fillers of Mistral's, and special ones of a class


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("vocabulary") / "base", 1, vocab_size=ROWS)


def pair_of(base, root, first, other, swapped=()):
    """Return a base and a fine-tune of it with tokenizers of two forms."""
    folders = [
        shutil.copytree(base, root / "base"),
        tune(base, root / "expert", 2, 0.002, dtype=None),
    ]
    first(folders[0])
    other(folders[1], swapped)
    return [read_checkpoint(folder.name, folder) for folder in folders]


PAIRS = [(form, form) for form in FORMS]
PAIRS += [(as_json, as_merges), (as_merges, as_json), (as_json, as_tiktoken)]


@pytest.mark.parametrize(("first", "other"), PAIRS)
def test_permuted_tokens_are_refused_in_every_form(first, other, base, tmp_path):
    same = pair_of(base, tmp_path / "same", first, other)
    assert token_conflicts(same) == ([], [])
    permuted = pair_of(base, tmp_path / "permuted", first, other, (5, 9))
    ((problem,), _) = token_conflicts(permuted)
    assert "base and expert have different tokens at 2 ids (" in problem
    assert "tokenizer: {source: union}" in problem
    assert token_conflicts(permuted[:1]) == ([], [])
    compared = check_compatibility([str(model.path) for model in permuted])
    assert "as they are" not in compared.verdict()
    assert len(compared.problems) == 1


def test_added_tokens_beside_a_vocabulary_are_read(tmp_path):
    as_merges(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<tool>": 285}')
    decoder = {"286": {"content": "<image>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    vocabulary = read_vocabulary("model", tmp_path)
    assert (vocabulary.tokens["<tool>"], vocabulary.tokens["<image>"]) == (285, 286)
    assert vocabulary.added == {"<tool>", "<image>"}


def test_control_pieces_that_were_renamed_are_a_warning(base, tmp_path):
    pair = pair_of(base, tmp_path, as_pieces, as_pieces)
    file = pair[1].path / "tokenizer.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())
    model.pieces[1].piece = "<begin>"
    file.write_bytes(model.SerializeToString())
    problems, (warning,) = token_conflicts(pair)
    assert problems == []
    assert "1 is '<s>' and '<begin>'" in warning
    compared = check_compatibility([str(model.path) for model in pair])
    assert "have different tokens at 1 ids, all added or special" in str(compared)
    assert compared.verdict() == "The merge methods take these models as they are."


@pytest.mark.parametrize("first", FORMS)
def test_a_missing_tokenizer_is_made_up_for_by_alike_rows_only(first, base, tmp_path):
    pair = pair_of(base, tmp_path / "pair", first, lambda *_: None)
    problems, (warning,) = token_conflicts(pair)
    assert problems == []
    assert warning.startswith("expert has no tokenizer: its tokens are taken for those of base")
    folder = make_model("llama", tmp_path / "other", 7, vocab_size=ROWS)
    ((problem,), _) = token_conflicts([pair[0], read_checkpoint("other", folder)])
    assert problem.startswith("other has no tokenizer, so its tokens cannot be compared with those")
    assert problem.endswith("copy the tokenizer that it was trained with into its folder")


def test_a_tokenizer_that_only_its_code_reads_is_compared_by_its_files(base, tmp_path):
    def by_code(folder, text=""):
        (folder / "tokenization_own.py").write_text("# a vocabulary in code")
        (folder / "vocab_own.dat").write_text(str(text))

    pair = pair_of(base, tmp_path, by_code, lambda folder, _: by_code(folder))
    assert token_conflicts(pair) == ([], [])
    by_code(pair[1].path, "another")
    pair = [read_checkpoint(model.name, model.path) for model in pair]
    ((problem,), _) = token_conflicts(pair)
    assert problem.startswith("the tokens of base and expert cannot be compared: only its own code")
    assert "save it as tokenizer.json, or add tokenizer: {source: union}" in problem
    assert "as they are" not in check_compatibility([str(m.path) for m in pair]).verdict()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", b"\x0a\xff\xff"),
        ("vocab.json", b"[]"),
        ("tekken.json", b"{}"),
        ("qwen.tiktoken", b"IQ== 0\nIQ== x\n"),
        ("vocab.txt", b"\xff\xfe"),
    ],
)
def test_a_damaged_tokenizer_is_one_sentence(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"^model: .*{name} cannot be read as a tokenizer \("):
        read_vocabulary("model", tmp_path)


def test_the_reference_is_the_first_that_has_a_tokenizer(base, tmp_path):
    """Where the first model had none, the others were not compared with each other."""
    pair = pair_of(base, tmp_path, as_merges, as_pieces)
    bare = edited(shutil.copytree(base, tmp_path / "bare"))
    models = [read_checkpoint("bare", bare), *pair]
    ((problem,), _) = token_conflicts(models)
    assert "base and expert have different tokens" in problem


def test_tokens_without_a_row_are_counted(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "model")
    rows = read_checkpoint("m", folder).tensors["model.embed_tokens.weight"].rows
    words = {f"w{number}": number for number in range(rows + 4)}
    (folder / "vocab.json").write_text(json.dumps(words))
    assert tokens_without_rows([read_checkpoint("m", folder)]) == [
        f"m: 4 tokens of its tokenizer (w{rows}, w{rows + 1}, w{rows + 2} and 1 more) have no row "
        f"in its model.embed_tokens.weight, which has {rows}"
    ]
    (folder / "vocab.json").write_text(json.dumps(dict(list(words.items())[:rows])))
    assert tokens_without_rows([read_checkpoint("m", folder)]) == []
