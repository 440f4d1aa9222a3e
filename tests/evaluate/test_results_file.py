"""One folder's `results.json` over several calls: what is kept, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from ablations.evaluate.results_file import FILE, Protocol, add_results, read_results
from ablations.scoring.records import Evaluation
from layerswap_method.errors import InputError, LayerSwapError

PROTOCOL = Protocol(
    model_fingerprint="f", backend="hf", limit=None, dtype="auto", max_model_len=None
)
ORDER = ("mgsm_sw", "mgsm_te", "mbpp_sw")


def _add(
    out: Path, *tasks: str, protocol: Protocol = PROTOCOL, data_dir: Path | None = None, **skip: str
) -> tuple[str, ...]:
    evaluations = {}
    for task in tasks:
        (out / task).mkdir(parents=True, exist_ok=True)
        (out / task / "evaluation.json").touch()
        evaluations[task] = Evaluation(
            model="m",
            backend="hf",
            scores=(),
            samples=(),
            task_versions={task: "1.0"},
            num_fewshot={task: 8},
            versions={"lm_eval": "0"},
            elapsed_s=1.0,
        )
    return add_results(
        *(out, "m", protocol),
        **{"evaluations": evaluations, "skipped": skip, "data_dir": data_dir, "order": ORDER},
    )


def _content(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / FILE).read_text(encoding="utf-8")))


def test_calls_add_up_in_the_order_of_the_suite(tmp_path: Path) -> None:
    assert _add(tmp_path, "mgsm_te", data_dir=Path("files")) == ()
    first = _content(tmp_path)["tasks"]["mgsm_te"]
    assert _add(tmp_path, "mgsm_sw", "mbpp_sw") == ("mgsm_te",)
    tasks = _content(tmp_path)["tasks"]
    assert list(tasks) == list(ORDER)
    assert tasks["mgsm_te"] == first
    assert [task["data_dir"] for task in tasks.values()] == [None, "files", None]
    assert tasks["mgsm_sw"]["task_versions"] == {"mgsm_sw": "1.0"}


def test_a_task_that_was_asked_again_has_its_new_scores(tmp_path: Path) -> None:
    _add(tmp_path, "mgsm_sw", "mgsm_te")
    assert _add(tmp_path, "mgsm_sw", data_dir=Path("others")) == ("mgsm_te",)
    assert _content(tmp_path)["tasks"]["mgsm_sw"]["data_dir"] == "others"


def test_skipped_are_those_of_the_last_call_without_a_score(tmp_path: Path) -> None:
    _add(tmp_path, "mgsm_sw", mbpp_sw="why")
    assert _content(tmp_path)["skipped"] == {"mbpp_sw": "why"}
    _add(tmp_path, "mbpp_sw")
    assert _content(tmp_path)["skipped"] == {}
    _add(tmp_path, "mgsm_sw", mbpp_sw="why")
    assert _content(tmp_path)["skipped"] == {}
    assert "mbpp_sw" in _content(tmp_path)["tasks"]


def test_scores_whose_records_are_gone_go_too(tmp_path: Path) -> None:
    _add(tmp_path, "mgsm_sw", "mgsm_te")
    (tmp_path / "mgsm_te" / "evaluation.json").unlink()
    assert _add(tmp_path, "mbpp_sw") == ("mgsm_sw",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_fingerprint": "g"}, "model m, whose files were others"),
        ({"backend": "vllm"}, "backend hf, now vllm"),
        ({"limit": 5}, "limit none, now 5"),
        ({"dtype": "float32"}, "dtype auto, now float32"),
        ({"max_model_len": 512}, "max-model-len none, now 512"),
        ({"limit": 5, "backend": "vllm"}, "backend hf, now vllm; limit none, now 5"),
    ],
)
def test_another_protocol_is_refused_and_nothing_written(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    _add(tmp_path, "mgsm_sw")
    before = _content(tmp_path)
    with pytest.raises(InputError) as refused:
        _add(tmp_path, "mgsm_te", protocol=PROTOCOL.model_copy(update=change))
    assert refused.value.message == (
        f"{tmp_path}: holds results of another evaluation ({words}); one folder is for one model "
        "and protocol: give another --out, or remove this one"
    )
    assert _content(tmp_path) == before


def test_another_model_is_named(tmp_path: Path) -> None:
    _add(tmp_path, "mgsm_sw")
    other = PROTOCOL.model_copy(update={"model_fingerprint": "g"})
    with pytest.raises(InputError, match=r"\(model m, now n\)"):
        read_results(tmp_path, "n", other)
    assert read_results(tmp_path, "n", PROTOCOL).keys() == {"mgsm_sw"}


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 1, "model": "m", "tasks": {}}'])
def test_what_cannot_be_read_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert _add(tmp_path, "mgsm_sw") == ()
    assert _content(tmp_path)["tasks"].keys() == {"mgsm_sw"}


def test_a_folder_that_takes_nothing_is_said() -> None:
    with pytest.raises(LayerSwapError, match=r"/proc/layerswap/results.json: cannot be written"):
        _add(Path("/proc/layerswap"))
