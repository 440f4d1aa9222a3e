"""Tokens and losses: checked with a real tokenizer and model."""

import json

import pytest

from ablations.train.config import read_config
from ablations.train.divergence import hidden_states
from ablations.train.model import load_tokenizer
from ablations.train.rows import IGNORED, encode
from layerswap_method.errors import InputError
from tests.train.runs import run, weights, write_base, write_config, write_jsonl

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def turns(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def learned(tokenizer, row):
    return tokenizer.decode([label for label in row["labels"] if label != IGNORED])


@pytest.fixture
def config(tmp_path, base, rows):
    return read_config(str(write_config(tmp_path / "c.yml", base, rows)))


@pytest.fixture
def tokenizer(base):
    return load_tokenizer(base)


def test_the_loss_is_on_the_answers_and_their_end_only(config, tokenizer):
    (row,) = encode([turns("w1 w2", "w3 w4", "w5", "w6")], tokenizer, config)
    text = tokenizer.decode(row["input_ids"]).split()
    assert text == ["w1", "w2", "w3", "w4", "w5", "w6", "<eos>"]
    assert learned(tokenizer, row).split() == ["w3", "w4", "w6", "<eos>"]


def test_a_chat_template_marks_each_answer_with_its_end(config, tokenizer):
    chat = config.model_copy(update={"template": "chat"})
    rows = [[{"role": "system", "content": "w9"}, *turns("w1", "w2", "w3", "w4 w5")]]
    with pytest.raises(InputError, match="has no chat template; write template: plain"):
        encode(rows, tokenizer, chat)
    tokenizer.chat_template = TEMPLATE
    (row,) = encode(rows, tokenizer, chat)
    assert learned(tokenizer, row).split() == ["w2", "<eos>", "w4", "w5", "<eos>"]
    tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(InputError, match="changes earlier turns"):
        encode(rows, tokenizer, chat)


def test_long_rows_are_cut_and_rows_without_an_answer_left_out(config, tokenizer, caplog):
    short = config.model_copy(update={"max_length": 10})
    rows = [turns("w1 " * 3, "w2 " * 20), turns("w1 " * 30, "w2")]
    (row,) = encode(rows, tokenizer, short)
    assert len(row["input_ids"]) == 10
    assert "2 of 2 rows are longer than max_length (10 tokens) and were cut" in caplog.text
    assert "1 rows were left out" in caplog.text
    with pytest.raises(InputError, match="set max_length higher"):
        encode(rows[1:], tokenizer, short)


def test_the_drift_of_a_chat_expert_is_of_the_format_that_it_was_trained_on(tmp_path):
    base = write_base(tmp_path / "base")
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = "<bos>" + TEMPLATE
    tokenizer.bos_token = "<bos>"
    tokenizer.save_pretrained(base)
    rows = write_jsonl(tmp_path / "r.jsonl", [{"chat": turns(f"w{n}", "w2")} for n in range(24)])
    data = [{"path": str(rows), "messages": "chat"}]
    config = write_config(tmp_path / "c.yml", base, data, template="chat", held_out=2, measure=True)
    run(config, tmp_path / "out")
    lines = (tmp_path / "out/held_out.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) == 2
    assert all(text.startswith("<bos><user>") and "<assistant>" in text for text in texts)
    (states,) = hidden_states(base, None, texts[:1])
    assert states.shape[1] == len(tokenizer(texts[0], add_special_tokens=False)["input_ids"])


def test_micro_batches_do_not_change_what_is_learned(tmp_path, base, rows):
    after = []
    for micro in (4, 1):
        trainer = {"per_device_train_batch_size": micro}
        config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer, max_length=16)
        run(config, tmp_path / f"micro-{micro}")
        after.append(weights(tmp_path / f"micro-{micro}"))
    # As vectors: where a gradient is nearly 0, AdamW's step has the sign of the rounding.
    before = weights(base)
    difference, change = (
        sum(float((one[name] - other[name]).square().sum()) for name in before)
        for one, other in ((after[0], after[1]), (after[0], before))
    )
    assert difference < 1e-4 * change
