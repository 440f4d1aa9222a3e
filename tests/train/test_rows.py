"""Rows: where they come from, what is left out, how they are mixed, and what is learned of them."""

import hashlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.train.config import read_training_file
from ablations.train.divergence import hidden_states
from ablations.train.model import load_tokenizer
from ablations.train.rows import IGNORED, encode_rows, mix_rows, split_by_weight
from layerswap_method.errors import InputError
from tests.train.conftest import run, write_base, write_config, write_jsonl, write_rows


def mix(path, base, data, *settings, **changes):
    return mix_rows(
        read_training_file(str(write_config(path / "c.yml", base, data, **changes)), settings)
    )


@given(total=st.integers(0, 500), weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_are_whole_and_sum_to_the_total(total, weights):
    parts = split_by_weight(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + 1e-6


def test_rows_are_drawn_by_seed_and_never_from_those_held_out(tmp_path, base, rows, caplog):
    first = mix(tmp_path, base, rows, samples=90)
    assert first == mix(tmp_path, base, rows, samples=90)
    assert first.train != mix(tmp_path, base, rows, "seed=1", samples=90).train
    assert len(first.train) == 90
    assert "a row is seen 2.5 times" in caplog.text
    trained = {str(row) for row in first.train}
    assert len(trained) == 36
    assert not trained & {str(row) for row in first.held_out}
    write_jsonl(tmp_path / "small.jsonl", [{"prompt": "w1", "answer": "w2"}] * 2)
    sources = [{"path": "small.jsonl", "weight": 1}, {"pocket": "task", "weight": 9}]
    with pytest.raises(InputError, match="has 2 usable rows, and held_out takes 3 from it"):
        mix(tmp_path, base, sources, "held_out=32", "samples=4")


def test_the_rows_of_a_seed_stay_so_that_an_expert_can_be_trained_again(tmp_path, base, rows):
    sources = [{"path": str(rows), "prompt": "{question} ", "answer": "{reply}"}]
    other = write_rows(tmp_path / "other.jsonl", shift=2)
    sources += [sources[0] | {"path": str(other), "weight": 3}]
    mixed = mix(tmp_path, base, sources, "seed=7", "samples=90")
    text = json.dumps([mixed.train, mixed.held_out])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b8d4bf0e07e9eb30"


@pytest.mark.parametrize("kind", ["path", "hub"])
def test_no_line_that_is_held_out_is_trained_on_by_another_source(tmp_path, base, kind):
    """Such as a translation, trained in both directions."""
    pairs = [{"en": f"w{n}", "es": f"w{n} w{n}"} for n in range(24)]
    file = write_jsonl(tmp_path / "set/pairs.jsonl", pairs)
    sources = [
        {kind: str(file if kind == "path" else file.parent), "prompt": one, "answer": other}
        for one, other in (("{en} ", "{es}"), ("{es} ", "{en}"))
    ]
    mixed = mix(tmp_path, base, sources, "held_out=8", "samples=48")
    held_out, trained = (
        {row[1]["content"].split()[0] for row in rows} for rows in (mixed.held_out, mixed.train)
    )
    assert held_out
    assert not held_out & trained
    assert held_out | trained == {pair["en"] for pair in pairs}
    with pytest.raises(InputError, match="has 24 usable rows, and held_out takes 24 from it"):
        mix(tmp_path, base, sources, "held_out=46", "samples=4")


def test_joint_training_takes_the_sources_of_other_files_by_weight(tmp_path, base):
    for name, shift in (("math", 1), ("swahili", 2)):
        path = write_rows(tmp_path / f"{name}.jsonl", shift=shift)
        write_config(tmp_path / f"{name}.yml", base, path)
    data = [{"config": "math.yml", "weight": 3}, {"config": "swahili.yml"}]
    assert list(mix(tmp_path, base, data).counts.values()) == [12, 4]


@pytest.mark.parametrize("kind", ["path", "hub"])
def test_a_file_and_a_data_set_give_the_same_rows(tmp_path, base, kind, caplog):
    rows = [
        {"prompt": f"w{n}", "answer": f"w{n}" if n % 4 else " ", "of": {"level": n % 2}}
        for n in range(16)
    ]
    file = write_jsonl(tmp_path / "set/rows.jsonl", rows)
    source = {kind: str(file if kind == "path" else file.parent)}

    def answers(where):
        mixed = mix(tmp_path, base, [source | where], "held_out=0", "samples=12")
        return {row[1]["content"] for row in mixed.train}

    # Rows with an empty answer would teach the model to end at once.
    every = {f"w{n}" for n in range(16) if n % 4}
    assert answers({}) == answers({"where": {"of.level": [0, 1]}}) == every
    assert "4 rows with an empty answer are left out" in caplog.text
    assert answers({"where": {"of.level": 1}}) == {f"w{n}" for n in range(1, 16, 2)}
    with pytest.raises(InputError, match=r"no field 'of.levle'"):
        answers({"where": {"of.levle": "1"}})
    with pytest.raises(InputError, match="no row is left after where"):
        answers({"where": {"of.level": 7}})
    if kind == "hub":
        with pytest.raises(InputError, match="cannot be loaded"):
            mix(tmp_path, base, [{"hub": "nowhere"}])


@pytest.mark.parametrize("replies", [["2024-01-05", "2024-02-01"], [2, 2.5], [10**30, "w\u2028"]])
def test_a_file_is_read_as_it_stands_whatever_stood_there(tmp_path, base, replies):
    """Without the types that pyarrow infers, and not from a cache."""
    file = tmp_path / "rows[1].jsonl"
    for text in (["before"], replies):
        write_jsonl(file, [{"question": "w1", "reply": reply} for reply in text])
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as some editors do
        os.utime(file, (1, 1))
        mixed = mix(tmp_path, base, file, "held_out=0", "samples=2")
        assert {row[1]["content"] for row in mixed.train} == set(map(str, text))


MESSAGES = "field 'chat' must be a list of messages"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ('{"question": "w1", "replay": "w2"}', "no field 'reply'; did you mean 'replay'?"),
        ('{"question": "w1", "reply": null}', "field 'reply' is empty"),
        ('{"question": "w1", "reply": ["w2"]}', r"field 'reply' is \['w2'\]; it must be text"),
        ("[1]", "not an object"),
        ("{", "not JSON: Expecting property name enclosed in double quotes, column 2$"),
        ('{"question": "w\\ud83d", "reply": "w2"}', "not JSON: 'utf-8' codec can't encode"),
        ('{"question": "\xe9"}', "not JSON: 'utf-8' codec can't decode byte 0xe9 in position 14"),
        ('{"chat": [{"role": "user"}]}', MESSAGES),
        ('{"chat": [{"role": "tool", "content": "w1"}]}', MESSAGES),
        ('{"chat": [{"role": "user", "content": 3}]}', MESSAGES),
        ('{"chat": "w1"}', MESSAGES),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path, base, bad, text):
    file, is_chat = tmp_path / "rows.jsonl", text == MESSAGES
    good = {"question": "w1", "reply": "w2", "chat": [{"role": "assistant", "content": "w2"}]}
    file.write_text(f"{json.dumps(good)}\n\n{bad}\n", encoding="latin-1")
    data = [{"path": str(file), "messages": "chat"}] if is_chat else file
    template = "chat" if is_chat else "plain"
    with pytest.raises(InputError, match=f"rows.jsonl: line 3: .*{text}"):
        mix(tmp_path, base, data, template=template)


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
    return read_training_file(str(write_config(tmp_path / "c.yml", base, rows)))


@pytest.fixture
def tokenizer(base):
    return load_tokenizer(base)


def test_the_loss_is_on_the_answers_and_their_end_only(config, tokenizer):
    (row,) = encode_rows([turns("w1 w2", "w3 w4", "w5", "w6")], tokenizer, config)
    text = tokenizer.decode(row["input_ids"]).split()
    assert text == ["w1", "w2", "w3", "w4", "w5", "w6", "<eos>"]
    assert learned(tokenizer, row).split() == ["w3", "w4", "w6", "<eos>"]


def test_a_chat_template_marks_each_answer_with_its_end(config, tokenizer):
    chat = config.model_copy(update={"template": "chat"})
    rows = [[{"role": "system", "content": "w9"}, *turns("w1", "w2", "w3", "w4 w5")]]
    with pytest.raises(InputError, match="has no chat template; write template: plain"):
        encode_rows(rows, tokenizer, chat)
    tokenizer.chat_template = TEMPLATE
    (row,) = encode_rows(rows, tokenizer, chat)
    assert learned(tokenizer, row).split() == ["w2", "<eos>", "w4", "w5", "<eos>"]
    tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(InputError, match="changes earlier turns"):
        encode_rows(rows, tokenizer, chat)


def test_a_message_that_the_template_leaves_out_is_warned_of(config, tokenizer, caplog):
    """As an evaluation refuses such a `system_instruction`."""
    chat = config.model_copy(update={"template": "chat"})
    system = {"role": "system", "content": " w9\n"}
    rows = [[system, *turns("w1", "w2")], turns("w3", "w4", "w5", "w6"), turns("w7", "w8", "w9")]
    tokenizer.chat_template = TEMPLATE.replace("m.content", "m.content | trim")
    encode_rows(rows, tokenizer, chat)
    assert "leaves out" not in caplog.text  # what follows the last answer is trained on nowhere
    for role, count in (("system", 1), ("user", 3)):
        tokenizer.chat_template = TEMPLATE.replace("messages", f"messages if m.role != '{role}'")
        encode_rows(rows, tokenizer, chat)
        assert (
            f"{count} of 3 rows have a system or user message that the chat template leaves out"
        ) in caplog.text


@pytest.mark.parametrize("regime", ["full", "lora"])
@pytest.mark.parametrize(("end", "warns"), [("<eos>", False), ("w7", True), ("w7\n", True)])
def test_a_turn_whose_end_ends_no_answer_is_warned_of(tmp_path, end, warns, regime, caplog):
    """Else the answers of the expert run on, from the first evaluation to the last."""
    base = write_base(tmp_path / "base")
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = TEMPLATE.replace("<eos>", end)
    tokenizer.save_pretrained(base)
    rows = write_jsonl(tmp_path / "r.jsonl", [{"chat": turns(f"w{n}", "w2")} for n in range(24)])
    data = [{"path": str(rows), "messages": "chat"}]
    config = write_config(tmp_path / "c.yml", base, data, template="chat", regime=regime)
    run(config, tmp_path / "out")
    token = tokenizer.convert_tokens_to_ids("w7")
    owner = "the expert" if regime == "full" else "the base"
    text = (
        f"end with 'w7' ({token}), and by the files of base they end at '<eos>' (2): they will run "
        f"on. Write eos_token_id: [2, {token}] into generation_config.json of {owner}"
    )
    assert (text in caplog.text) == warns
    if warns:  # the advice is enough
        settings = tmp_path / ("out" if regime == "full" else "base") / "generation_config.json"
        settings.write_text(json.dumps({"eos_token_id": [2, token]}))
        caplog.clear()
        run(config, tmp_path / "again", f"base={settings.parent if regime == 'full' else base}")
        assert "run on" not in caplog.text


def test_long_rows_are_cut_and_rows_without_an_answer_left_out(config, tokenizer, caplog):
    short = config.model_copy(update={"max_length": 10})
    rows = [turns("w1 " * 3, "w2 " * 20), turns("w1 " * 30, "w2")]
    (row,) = encode_rows(rows, tokenizer, short)
    assert len(row["input_ids"]) == 10
    assert "2 of 2 rows are longer than max_length (10 tokens) and were cut" in caplog.text
    assert "1 rows were left out" in caplog.text
    with pytest.raises(InputError, match="set max_length higher"):
        encode_rows(rows[1:], tokenizer, short)


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
