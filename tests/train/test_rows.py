"""Rows: where they come from, what is left out, how they are mixed, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.train.config import read_config
from ablations.train.rows import mix_rows, split_by_weight
from layerswap_method.errors import InputError
from tests.train.runs import write_config, write_jsonl, write_rows


def mix(path, base, data, *settings, **changes):
    return mix_rows(read_config(str(write_config(path / "c.yml", base, data, **changes)), settings))


def answers(rows):
    return {row[1]["content"] for row in rows}


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
    assert "each is seen 2.5 times" in caplog.text
    trained = {str(row) for row in first.train}
    assert len(trained) == 36
    assert not trained & {str(row) for row in first.held_out}


def test_joint_training_takes_the_sources_of_other_files_by_weight(tmp_path, base):
    for name, shift in (("math", 1), ("swahili", 2)):
        path = write_rows(tmp_path / f"{name}.jsonl", shift=shift)
        write_config(tmp_path / f"{name}.yml", base, path)
    counts = mix(
        tmp_path, base, [{"config": "math.yml", "weight": 3}, {"config": "swahili.yml"}]
    ).counts
    assert list(counts.values()) == [12, 4]


@pytest.mark.parametrize("kind", ["path", "hub"])
def test_a_file_and_a_data_set_give_the_same_rows(tmp_path, base, kind, caplog):
    rows = [
        {"prompt": f"w{n}", "answer": f"w{n}" if n % 4 else " ", "of": {"level": n % 2}}
        for n in range(16)
    ]
    file = write_jsonl(tmp_path / "set/rows.jsonl", rows)
    source = {kind: str(file if kind == "path" else file.parent)}
    settings = ("held_out=0", "samples=12")
    every = mix(tmp_path, base, [source], *settings)
    # Rows with an empty answer would teach the model to end at once.
    assert answers(every.train) == {f"w{n}" for n in range(16) if n % 4}
    assert "4 rows with an empty answer are left out" in caplog.text
    odd = mix(tmp_path, base, [{**source, "where": {"of.level": "1"}}], *settings)
    assert answers(odd.train) == {f"w{n}" for n in range(1, 16, 2)}
    both = mix(tmp_path, base, [{**source, "where": {"of.level": ["0", "1"]}}], *settings)
    assert both == every
    with pytest.raises(InputError, match=r"no field 'of.levle'"):
        mix(tmp_path, base, [{**source, "where": {"of.levle": "1"}}])
    with pytest.raises(InputError, match="no row is left after where"):
        mix(tmp_path, base, [{**source, "where": {"of.level": "7"}}])
    if kind == "hub":
        with pytest.raises(InputError, match="cannot be loaded"):
            mix(tmp_path, base, [{"hub": "nowhere"}])


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ('{"question": "w1", "replay": "w2"}', "no field 'reply'; did you mean 'replay'?"),
        ('{"question": "w1", "reply": null}', "field 'reply' is empty"),
        ('{"question": "w1", "reply": ["w2"]}', r"field 'reply' is \['w2'\]; it must be text"),
        ("[1]", "not an object"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path, base, bad, text):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "w1", "reply": "w2"}\n' + bad + "\n")
    with pytest.raises(InputError, match=f"rows.jsonl: line 2: .*{text}"):
        mix(tmp_path, base, file)


@pytest.mark.parametrize(
    "message",
    [{"role": "user"}, {"role": "tool", "content": "w1"}, {"role": "user", "content": 3}, "w1"],
)
def test_a_conversation_that_is_none_is_refused(tmp_path, base, message):
    good = {"role": "assistant", "content": "w2"}
    file = write_jsonl(tmp_path / "rows.jsonl", [{"chat": [good, message]}])
    with pytest.raises(InputError, match="line 1: field 'chat' must be a list of messages"):
        mix(tmp_path, base, [{"path": str(file), "messages": "chat"}])
