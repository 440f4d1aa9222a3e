"""A conversation is the same tokens in training and in evaluation, whatever the tokenizer adds."""

import itertools
from contextlib import closing
from types import SimpleNamespace

import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ablations.engines.chat import chat_prompt, chat_tokenizer
from ablations.engines.hf_model import HfModel
from ablations.engines.lm_eval_backend import start_model
from ablations.engines.stored_answers_lm import StoredAnswersLM
from ablations.models.tokens import following_tokens, pair_tokens, prompt_tokens
from ablations.scoring.protocol import EvaluationProtocol
from ablations.train.config import read_training_file
from ablations.train.model import load_tokenizer
from ablations.train.rows import IGNORED, _tokenize, collate, encode_rows
from tests.engines.backends import BACKENDS
from tests.standins.live_cells import OPTIONS
from tests.standins.tasks import write_rows, write_task
from tests.standins.word_models import WORDS, write_model
from tests.train.conftest import run, write_config, write_jsonl

pytestmark = pytest.mark.filterwarnings("ignore")
TURNS = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
TEMPLATES = {"plain": None, "without BOS": TURNS, "with BOS": "<bos> " + TURNS}
ADDED = {"nothing": "$A", "BOS": "<bos> $A", "BOS and EOS": "<bos> $A <eos>"}
CHAT = [{"role": "user", "content": "w1 w2 "}, {"role": "assistant", "content": "w3"}]


def write_talker(folder, added, template):
    """Write a model by what its tokenizer adds and its template writes; EOS is its padding."""
    write_model(folder, words=[*WORDS, "<user>", "<assistant>", "<end>"])
    tokenizer = load_tokenizer(folder)
    ends = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<bos>", "<eos>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=ADDED[added], special_tokens=ends
    )
    tokenizer.pad_token = "<eos>"
    tokenizer.chat_template = TEMPLATES[template]
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=itertools.product(ADDED, TEMPLATES), ids=" / ".join)
def talker(request, tmp_path_factory):
    """Return a model, what its tokenizer adds, and what its template writes."""
    folder = tmp_path_factory.mktemp("models") / "talker"
    return write_talker(folder, *request.param), *request.param


def trained(folder, template, tmp_path, row=CHAT):
    """Return the ids and labels of a row, as a batch that is padded."""
    prompt, answer = (message["content"] for message in row)
    fields = {"chat": row, "prompt": prompt, "answer": answer}
    data = [{"path": str(write_jsonl(tmp_path / "rows.jsonl", [fields]))}]
    form = "plain" if template == "plain" else "chat"
    data[0] |= {"messages": "chat"} if form == "chat" else {}
    config = read_training_file(str(write_config(tmp_path / "c.yml", folder, data, template=form)))
    tokenizer = load_tokenizer(folder)
    longer = [*row[:1], {"role": "assistant", "content": "w3 w4 w5"}]
    return collate(encode_rows([row, longer], tokenizer, config), tokenizer.pad_token_id)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_prompt_of_an_evaluation_is_how_a_row_begins(backend, talker, tmp_path):
    folder, added, template = talker
    batch = trained(folder, template, tmp_path)
    prompts = [CHAT[0]["content"], "w1 " * 7]
    if template != "plain":
        writer = chat_tokenizer(folder)
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        prompts = [chat_prompt(writer, chat, {}) for chat in chats]
    with closing(start_model(folder, backend, OPTIONS)) as engine:
        tokenizer = engine.tokenizer
        tokens = [prompt_tokens(tokenizer, prompt) for prompt in prompts]
        assert given(engine, backend, prompts) == tokens
    row = batch["input_ids"][0].tolist()
    assert row[: len(tokens[0])] == tokens[0]
    first = tokenizer.decode(tokens[0][:1])
    assert (first == "<bos>") is (added != "nothing" or template == "with BOS")
    assert tokens[0].count(tokenizer.bos_token_id) == (first == "<bos>")
    assert tokenizer.eos_token_id not in tokens[0]


def given(engine, backend, prompts):
    """Return the ids that the network gets of each prompt, without padding, the shortest first."""
    rows = []

    def keep(_module, _args, options):
        if options["input_ids"].shape[1] > 1:
            ids, mask = options["input_ids"], options["attention_mask"]
            rows.extend(row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True))

    def keep_prompts(tokens, *others, **options):
        rows.extend(list(prompt["prompt_token_ids"]) for prompt in tokens)
        return enqueue(tokens, *others, **options)

    options = {"until": [], "do_sample": False, "max_gen_toks": 2}
    requests = [
        Instance("generate_until", {}, (prompt, options), 0, ("t", place, 1))
        for place, prompt in enumerate(prompts)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if backend == "hf":
            hook = engine.model.register_forward_pre_hook(keep, with_kwargs=True)
        else:
            enqueue = engine.model.enqueue
            patch.setattr(engine.model, "enqueue", keep_prompts)
        StoredAnswersLM(engine, EvaluationProtocol()).generate_until(requests)
        if backend == "hf":
            hook.remove()
    return sorted(rows, key=len)


def test_the_end_of_an_answer_is_learned_where_it_is_the_padding_too(talker, tmp_path):
    folder, _, template = talker
    batch = trained(folder, template, tmp_path)
    tokenizer = load_tokenizer(folder)
    end = tokenizer.convert_tokens_to_ids("<eos>" if template == "plain" else "<end>")
    parts = (batch[name].tolist() for name in ("input_ids", "labels", "attention_mask"))
    for ids, labels, mask in zip(*parts, strict=True):
        length = sum(mask)
        assert mask == [1] * length + [0] * (len(mask) - length)
        assert (ids[length - 1], labels[length - 1]) == (end, end)
        assert labels[length:] == [IGNORED] * (len(labels) - length)
    assert batch["attention_mask"][0].sum() < len(batch["attention_mask"][0])


def test_checkpoints_are_selected_on_the_tokens_of_training(tmp_path, monkeypatch):
    folder = write_talker(tmp_path / "talker", "BOS", "without BOS")
    tasks = tmp_path / "tasks"
    write_task(tasks, "one", write_rows(tasks, [{"prompt": "w1 w2 ", "answer": "w3"}]))
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"chat": CHAT}] * 20)
    data = [{"path": str(rows), "messages": "chat"}]
    select = {"tasks": ["one"], "include_path": str(tasks), "backend": "hf"}
    config = write_config(tmp_path / "c.yml", folder, data, template="chat", select=select)
    contexts, generate = [], HfModel._model_generate

    def spy(model, context, *arguments, **options):
        contexts.append(context.tolist())
        return generate(model, context, *arguments, **options)

    monkeypatch.setattr(HfModel, "_model_generate", spy)
    run(config, tmp_path / "out")
    batch = trained(folder, "without BOS", tmp_path)
    ids, labels = (batch[name][0].tolist() for name in ("input_ids", "labels"))
    length = next(place for place, label in enumerate(labels) if label != IGNORED)
    assert [ids[:length]] in contexts


def test_a_text_that_follows_gets_nothing_in_front(talker):
    folder, added, _ = talker
    tokenizer = load_tokenizer(folder)
    bos = [] if added == "nothing" else [tokenizer.bos_token_id]
    assert prompt_tokens(tokenizer, "w1") == [
        *bos,
        *tokenizer("w1", add_special_tokens=False).input_ids,
    ]
    assert prompt_tokens(tokenizer, "<bos> w1").count(tokenizer.bos_token_id) == 1


SPACES = {
    "by the normalizer": "Llama 2",
    "by Metaspace": "Mistral 0.1",
    "by ByteLevel": "GPT-2 with add_prefix_space",
    "none": "Llama 3",
}
"""Where a tokenizer adds a space to the beginning of a text: whose form that is."""


def spaced_tokenizer(where):
    """Return a small BPE tokenizer that adds a space before every text, or none."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    alphabet = []
    if where in ("by ByteLevel", "none"):
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=where != "none")
        tokenizer.decoder = decoders.ByteLevel()
    else:
        parts = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        if where == "by the normalizer":
            tokenizer.normalizer = normalizers.Sequence(parts)
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["5", "a", "Answer:", "10"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


@pytest.mark.parametrize("where", SPACES)
def test_a_text_without_a_prompt_is_learned_as_it_is_asked(where):
    """As plain text that a language expert is trained on: its prompt is empty."""
    tokenizer = spaced_tokenizer(where)
    row = _tokenize([("", False), ("5 a", True)], tokenizer, SimpleNamespace(template="plain"))
    asked = prompt_tokens(tokenizer, "5 a")
    assert row["input_ids"] == asked
    assert row["labels"] == [IGNORED, *asked[1:]]


@pytest.mark.parametrize("where", SPACES)
def test_no_space_is_added_between_a_prompt_and_its_answer(where):
    """Else an answer is learned as other tokens than its likelihood is asked of."""
    tokenizer = spaced_tokenizer(where)
    prompt = prompt_tokens(tokenizer, "Answer:")
    assert prompt == tokenizer("Answer:", add_special_tokens=False).input_ids
    for answer in (" 5", "5", "\n5 a", " ", ""):
        tokens = following_tokens(tokenizer, answer)
        assert tokenizer.decode(prompt + tokens).strip(" ") == f"Answer:{answer}".strip(" ")
        if answer.strip():
            assert pair_tokens(tokenizer, "Answer:", answer, 1) == (prompt, tokens)
        if where == "none":
            assert tokens == tokenizer(answer, add_special_tokens=False).input_ids
