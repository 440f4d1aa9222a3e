"""Tokens and losses: checked with a real tokenizer and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.train.files import read_config
from ablations.train.model import load_tokenizer
from ablations.train.rows import mix_rows, split_by_weight
from ablations.train.run import train_expert
from ablations.train.sequences import IGNORED, Sequences, Tokens, encode
from ablations.train.trainer import plan_steps
from layerswap_method.errors import InputError
from tests.train.runs import weights, write_config

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def _turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def _learned(tokenizer: Any, tokens: Tokens) -> str:
    found: str = tokenizer.decode([label for label in tokens.labels if label != IGNORED])
    return found


def _encode(base: Path, rows: list[Any], **changes: Any) -> Any:
    tokenizer = changes.pop("tokenizer", None) or load_tokenizer(base)
    options = {"template": "plain", "separator": " ", "max_length": 64, **changes}
    return tokenizer, encode(rows, tokenizer, **options)


def test_the_loss_is_on_the_answers_and_their_end_only(base: Path) -> None:
    tokenizer, found = _encode(base, [_turns("w1 w2", "w3 w4", "w5", "w6")])
    (row,) = found.rows
    assert tokenizer.decode(row.ids).split() == ["w1", "w2", "w3", "w4", "w5", "w6", "<eos>"]
    assert _learned(tokenizer, row).split() == ["w3", "w4", "w6", "<eos>"]


def test_a_chat_template_marks_each_answer_with_its_end(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = TEMPLATE
    system = {"role": "system", "content": "w9"}
    rows = [[system, *_turns("w1", "w2", "w3", "w4 w5")]]
    _, found = _encode(base, rows, tokenizer=tokenizer, template="chat")
    assert _learned(tokenizer, found.rows[0]).split() == ["w2", "<eos>", "w4", "w5", "<eos>"]


def test_a_chat_template_that_rewrites_earlier_turns_is_refused(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(InputError, match="changes earlier turns"):
        _encode(base, [_turns("w1", "w2")], tokenizer=tokenizer, template="chat")


def test_long_rows_are_cut_and_rows_without_an_answer_left_out(base: Path) -> None:
    rows = [_turns("w1 " * 3, "w2 " * 20), _turns("w1 " * 30, "w2")]
    _, found = _encode(base, rows, max_length=10)
    assert (found.cut, found.dropped, len(found.rows)) == (2, 1, 1)
    assert len(found.rows[0].ids) == 10


@given(
    lengths=st.lists(st.integers(2, 12), min_size=1, max_size=40),
    batch=st.integers(1, 5),
    every=st.one_of(st.none(), st.integers(1, 20)),
)
def test_every_row_is_seen_once_and_checkpoints_come_in_time(
    lengths: list[int], batch: int, every: int | None
) -> None:
    rows = [Tokens(np.full(n, i, np.int32), np.full(n, i, np.int32)) for i, n in enumerate(lengths)]
    sequences = Sequences(rows)
    seen = [i for number in range(len(sequences)) for i in sequences[number]["input_ids"]]
    assert seen == [i for i, n in enumerate(lengths) for _ in range(n)]
    plan = plan_steps(sequences, batch, every)
    assert plan.samples_after[0] == 0
    assert plan.samples_after[-1] == len(rows)
    assert plan.steps in plan.save_after
    if every is not None:
        reached = [plan.samples_after[step] for step in sorted(plan.save_after)]
        for multiple in range(every, len(rows) + 1, every):
            first = min(count for count in plan.samples_after if count >= multiple)
            assert first in reached
    else:
        assert plan.save_after == {plan.steps}


@given(total=st.integers(0, 500), weights_=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_are_whole_and_sum_to_the_total(total: int, weights_: list[float]) -> None:
    parts = split_by_weight(total, weights_)
    assert sum(parts) == total
    for part, weight in zip(parts, weights_, strict=True):
        assert abs(part - total * weight / sum(weights_)) < 1 + 1e-6


def test_rows_are_drawn_by_seed_and_never_from_those_held_out(
    tmp_path: Path, base: Path, rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(str(write_config(tmp_path / "c.yml", base, rows, samples=90)))
    mix = mix_rows(config)
    assert mix == mix_rows(config)
    assert mix.train != mix_rows(config.model_copy(update={"seed": 1})).train
    assert len(mix.train) == 90
    assert "each is seen 2.5 times" in caplog.text
    trained = {str(row) for row in mix.train}
    assert len(trained) == 36
    assert not trained & {str(row) for row in mix.held_out}


def test_where_leaves_rows_out(tmp_path: Path, base: Path, rows: Path) -> None:
    source = {"path": str(rows), "prompt": "{language}", "answer": "{reply}"}
    for wanted, found in (("a", {"a"}), (["a", "b"], {"a", "b"})):
        data = [{**source, "where": {"language": wanted}}]
        config = read_config(str(write_config(tmp_path / "c.yml", base, data)))
        assert {row[0]["content"] for row in mix_rows(config).train} == found


def test_micro_batches_do_not_change_what_is_learned(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    found = []
    for micro in (4, 1):
        config = write_config(
            *(tmp_path / "c.yml", base, rows),
            **{"micro_batch_size": micro, "measure": False, "max_length": 16},
        )
        out = tmp_path / f"micro-{micro}"
        train_expert(read_config(str(config)), out)
        found.append(weights(out))
    # As vectors: where a gradient is nearly 0, AdamW's step has the sign of the rounding.
    before = weights(base)
    difference, change = (
        sum(float((one[name] - other[name]).square().sum()) for name in before)
        for one, other in ((found[0], found[1]), (found[0], before))
    )
    assert difference < 1e-4 * change
