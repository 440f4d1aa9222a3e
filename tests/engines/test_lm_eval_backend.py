"""The real lm-eval on a random model, with transformers and with vLLM."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import resolve_backend
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import EngineOptions
from ablations.machine.progress import listening
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.protocol import GenKwargs
from layerswap_method.errors import InputError, LayerSwapError
from tests.engines.backends import BACKENDS, VLLM
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.live_cells import OPTIONS
from tests.standins.tasks import write_task
from tests.standins.word_models import write_model

TASKS = ("words_generate", "words_translate", "words_choose")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _evaluate(model, folder, names=TASKS, backend="hf", options=OPTIONS, **changes):
    request = EvaluationRequest(tasks=names, include_path=folder, **changes)
    return evaluate_cold(model, request, backend, options)


@pytest.fixture(scope="module")
def evaluation(model, tasks):
    return _evaluate(model, tasks)


def test_every_task_metric_and_filter_has_a_score(evaluation):
    assert [(s.task, s.metric, s.filter) for s in evaluation.scores] == [
        *(("words_generate", name, "first-word") for name in ("exact_match", "truncated")),
        ("words_generate", "prompt_truncated", "first-word"),
        *(("words_translate", name, "stripped") for name in ("bleu", "truncated")),
        ("words_translate", "prompt_truncated", "stripped"),
        *(("words_choose", name, "none") for name in ("acc_norm", "acc", "prompt_truncated")),
    ]
    for score in evaluation.scores:
        assert score.n == 24
        assert 0 <= score.interval.low <= score.value <= score.interval.high <= 1
    # A random model gets some choices right and some wrong: neither end of the scale.
    assert 0 < evaluation.shown_score("words_choose").value < 1
    assert (evaluation.backend, evaluation.num_fewshot["words_generate"]) == ("hf", 2)
    assert evaluation.task_versions == dict.fromkeys(TASKS, "3.0")
    assert evaluation.versions["lm_eval"].startswith("0.4.")


_LENGTHS = """
def score(doc, results):
    lengths = {"4096": -1.0, "8192": -1.0, "16384": -1.0}
    return {**lengths, ("4096" if doc["prompt"] < "w2" else "8192"): 0.5}
"""


def test_lengths_that_an_item_does_not_have_are_no_part_of_a_score(model, tasks, tmp_path):
    """RULER's scores by length, by lm-eval's own aggregation of them."""
    folder = shutil.copytree(tasks, tmp_path / "tasks")
    (folder / "lengths.py").write_text(_LENGTHS)
    metrics = "".join(
        f"- {{metric: '{name}', aggregation: !function lengths.mean, higher_is_better: true}}\n"
        for name in (16384, 4096, 8192)
    )
    with (folder / "lengths.py").open("a") as file:
        file.write("from lm_eval.tasks.ruler.common_utils import aggregate_metrics as mean\n")
    write_task(folder, "lengths", folder / "data.jsonl", metric_list=None)
    with (folder / "lengths.yaml").open("a") as file:
        file.write(f"process_results: !function lengths.score\nmetric_list:\n{metrics}")
    scores = _evaluate(model, folder, ("lengths",)).scores[:2]
    assert [(score.metric, score.value) for score in scores] == [("4096", 0.5), ("8192", 0.5)]
    assert sum(score.n for score in scores) == 24
    assert all(score.n < 24 for score in scores)


def test_programs_that_a_task_executes_by_itself_are_noted_as_held_by_nothing(
    tasks, model, tmp_path
):
    folder = shutil.copytree(tasks, tmp_path / "tasks")
    (folder / "runs.py").write_text(
        "def score(doc, results):\n    exec('value = 1')\n    return {'acc': 1.0}\n"
    )
    write_task(folder, "runs", folder / "data.jsonl", metric_list=[{"metric": "acc"}])
    with (folder / "runs.yaml").open("a") as file:
        file.write("unsafe_code: true\nprocess_results: !function runs.score\n")
    (note,) = _evaluate(model, folder, ("runs",), limit=4, isolation="none").notes
    assert note.startswith("runs: generated code ran in the process of the evaluation, WITHOUT ISO")
    refused = _evaluate(model, folder, ("runs",), limit=4, isolation="bwrap")
    assert (refused.scores, [*refused.skipped]) == ((), ["runs"])


def test_threads_wait_for_each_other(tasks, tmp_path):
    """What loading and evaluating change is the process's: defaults of torch, random states."""
    models = [write_model(tmp_path / str(seed), seed) for seed in range(3)]
    drawn = {"gen_kwargs": GenKwargs(temperature=1.0), "names": TASKS[:1]}
    expected = [_evaluate(each, tasks, **drawn).samples for each in models]
    make_bar = tqdm.__init__
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda each: _evaluate(each, tasks, **drawn).samples, models))
    assert found == expected
    assert tqdm.__init__ is make_bar


_PARTS = """
def score(doc, results):
    part = (int(doc["answer"][1:]) % 4) / 10
    return {"bleu": float("nan") if part == 0 else part, "typical": part, "worst": part}

def lowest(items):
    return min(items) - 0.5
"""
_SUMMARIES = """
process_results: !function parts.score
metric_list:
- {metric: bleu, aggregation: nanmean, higher_is_better: true}
- {metric: typical, aggregation: median, higher_is_better: true}
- {metric: worst, aggregation: !function parts.lowest, higher_is_better: true}
"""


def test_scores_that_are_no_mean_of_items_are_those_of_lm_eval(model, tasks, tmp_path):
    folder = Path(shutil.copytree(tasks, tmp_path / "tasks"))
    (folder / "parts.py").write_text(_PARTS)
    write_task(folder, "parts", folder / "data.jsonl", metric_list=None)
    with (folder / "parts.yaml").open("a") as file:
        file.write(_SUMMARIES)
    scores = _evaluate(model, folder, ("parts",), limit=5).scores
    # The parts of the first five items are .1, .2, .3, 0 and .1.
    values = {s.metric: (s.value, s.interval is None) for s in scores[:3]}
    assert values == {
        "bleu": (pytest.approx(0.175), False),
        "typical": (pytest.approx(0.1), True),
        "worst": (pytest.approx(-0.5), True),
    }


@pytest.mark.parametrize("task", ["words_generate", "words_choose"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_is_no_number_gives_no_score(tasks, backend, task, tmp_path):
    folder, name = write_model(tmp_path / "model"), "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    request = EvaluationRequest(tasks=(task,), include_path=tasks)
    path = tmp_path / "answers.jsonl"
    where = name if backend == "hf" else "no weight that the engine shows"
    with (
        closing(start_model(folder, backend, OPTIONS)) as lm,
        AnswerFile(path) as answers,
        pytest.raises(LayerSwapError, match=f"^{task}: log-likelihoods are not finite: {where}"),
    ):
        run_tasks(lm, resolve(request), folder, backend, answers)
    assert not path.exists()


@pytest.mark.slow
def test_the_same_again_is_the_same_and_another_model_is_not(evaluation, tasks, model, tmp_path):
    other = write_model(tmp_path / "other", seed=1)
    options = EngineOptions(batch_size=5)
    first, between, again = (
        _evaluate(each, tasks, options=options) for each in (model, other, model)
    )
    assert (first.scores, first.samples) == (again.scores, again.samples)
    texts = [[s.responses for s in e.samples_of(TASKS[0])] for e in (evaluation, first, between)]
    # Batches of five instead of one: padding must not change an answer.
    assert texts[0] == texts[1] != texts[2]
    own = shutil.copytree(model, tmp_path / "own")  # generation settings of the model do not count
    (own / "generation_config.json").write_text('{"repetition_penalty": 3.0, "eos_token_id": 2}')
    assert _evaluate(own, tasks).samples == evaluation.samples


def test_models_that_cannot_be_loaded_are_refused(model, tasks, tmp_path):
    with pytest.raises(InputError, match="layerswap-tests/none: hf cannot load it"):
        _evaluate("layerswap-tests/none", tasks)
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"hf cannot load it: .*safetensors"):
        _evaluate(broken, tasks)


@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_nothing_of_one_model_shows_in_the_next_on_vllm_and_one_that_fails_spoils_none(
    evaluation, model, tasks, backend, tmp_path, caplog
):
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == backend
    assert "backend: vLLM" in caplog.text
    first = _evaluate(model, tasks, backend=backend)
    assert first.scores == evaluation.scores
    other = write_model(tmp_path / "other", 1)
    assert _evaluate(other, tasks, backend=backend).samples != first.samples
    (other / "model.safetensors").unlink()
    with pytest.raises(
        LayerSwapError, match=r"vllm cannot load it: .*no file named model\.safetensors"
    ):
        _evaluate(other, tasks, backend=backend)
    assert _evaluate(model, tasks, backend=backend).samples == first.samples


@pytest.mark.parametrize("task", ["words_generate", "words_choose"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_items_are_told_as_they_are_answered(model, tasks, task, backend):
    heard = []
    options = OPTIONS.model_copy(update={"batch_size": 8})
    with listening(heard.append):
        _evaluate(model, tasks, (task,), backend, options)
    steps = [step for step in heard if step.activity == task]
    assert (steps[0].done, steps[-1].done, steps[-1].total) == (0, 24, 24)
    assert len({step.done for step in steps}) >= 4  # three batches of eight at the least
