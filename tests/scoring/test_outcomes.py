"""What is told of each request, against transformers asked directly; and with vLLM the same."""

from pathlib import Path

import pytest
import yaml

from ablations.engines import vllm_engine
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Evaluation, EvaluationRequest
from tests.standins.cold import evaluate_cold
from tests.standins.talkers import write_model
from tests.standins.tasks import write_tasks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TASKS = ("words_generate", "words_long", "words_stop", "words_choose")
SHORT = 12
"""Tokens of context: fewer than any prompt of `words_generate` has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks of the other tests, one with the same prompts and another limit, one that stops."""
    folder = write_tasks(tmp_path_factory.mktemp("outcomes") / "tasks")
    generate = yaml.safe_load((folder / "words_generate.yaml").read_text())
    for name, options in {
        "words_long": {"max_gen_toks": 3},
        "words_stop": {"until": ["w3", "w7", "w11", "w19"], "max_gen_toks": 4},
    }.items():
        changed = {**generate, "task": name}
        changed["generation_kwargs"] = {**generate["generation_kwargs"], **options}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    return folder


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that ends some of its answers by itself and not the others."""
    import torch
    from transformers import LlamaForCausalLM

    folder = write_model(tmp_path_factory.mktemp("speaker") / "model", seed=3)
    network = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.lm_head.weight[2] *= 1.5
    network.save_pretrained(folder)
    return folder


def _evaluate(
    model: Path, folder: Path, backend: str = "hf", context: int | None = None, batch: int = 64
) -> Evaluation:
    options = EngineOptions(
        max_model_len=context, batch_size=batch, kv_cache_gib=1, gpu_memory_utilization=0.3
    )
    request = EvaluationRequest(tasks=TASKS, include_path=folder)
    return evaluate_cold(model, request, backend, options)


@pytest.fixture(scope="module")
def whole(speaker: Path, folder: Path) -> Evaluation:
    return _evaluate(speaker, folder)


@pytest.fixture(scope="module")
def short(speaker: Path, folder: Path) -> Evaluation:
    return _evaluate(speaker, folder, context=SHORT)


def _ends_by_itself(model: Path, prompts: list[str], room: int | None, limit: int) -> list[bool]:
    """Ask transformers one prompt at a time: does <eos> come within the limit?"""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    network = AutoModelForCausalLM.from_pretrained(model)
    for prompt in prompts:
        tokens = tokenizer(prompt).input_ids
        tokens = tokens if room is None else tokens[-room:]
        for _ in range(limit):
            with torch.no_grad():
                tokens.append(int(network(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == 2:
                break
        found.append(tokens[-1] == 2)
    return found


@pytest.mark.parametrize(("task", "limit"), [("words_generate", 8), ("words_long", 3)])
def test_an_answer_is_truncated_where_the_model_did_not_end_it(
    whole: Evaluation, speaker: Path, task: str, limit: int
) -> None:
    samples = whole.samples_of(task)
    ended = _ends_by_itself(speaker, [s.prompts[0] for s in samples], None, limit)
    assert [sample.values["truncated"] for sample in samples] == [float(not e) for e in ended]
    assert 0 < whole.score(task, "truncated").value < 1
    score = whole.score(task, "truncated")
    assert score.interval is not None
    assert score.interval.method == "wilson"
    assert (score.higher_is_better, score.n) == (False, 24)


def test_a_stop_string_ends_an_answer(whole: Evaluation, speaker: Path) -> None:
    samples = whole.samples_of("words_stop")
    stopped = [sample for sample in samples if sample.values["truncated"] == 0]
    assert 0 < len(stopped) < len(samples)
    for sample in samples:
        (text,) = sample.responses
        assert isinstance(text, str)
        assert not {"w3", "w7", "w11", "w19", "<eos>"} & set(text.split())
        # The limit leaves four words to an answer that was cut off.
        assert sample.values["truncated"] == float(len(text.split()) == 4)


def test_what_does_not_fit_is_cut_from_the_left_and_said(
    whole: Evaluation, short: Evaluation, speaker: Path
) -> None:
    assert whole.notes == ()
    assert whole.score("words_generate", "prompt_truncated").value == 0
    assert short.score("words_generate", "prompt_truncated").value == 1
    assert short.notes[:2] == (
        "words_generate: 24 of 24 prompts (up to 20 tokens) do not fit the context of 12 tokens "
        "beside the answer and were cut from the left, so that examples are missing",
        "words_generate: answers end at 6 tokens and not at 8: the context of 12 tokens must hold "
        "the prompt, too",
    )
    # Asked for 3 tokens, the answer gets them, and the prompt the rest.
    assert [note.split(":")[0] for note in short.notes if "answers end" in note] == [TASKS[0]]
    samples = short.samples_of("words_long")
    ended = _ends_by_itself(speaker, [s.prompts[0] for s in samples], SHORT - 3, 3)
    assert [sample.values["truncated"] for sample in samples] == [float(not e) for e in ended]
    # The records keep the prompt as it was asked.
    assert samples[0].prompt_hash == whole.samples_of("words_long")[0].prompt_hash


def test_choices_are_scored_after_as_much_of_the_prompt_as_vllm_takes(
    speaker: Path, folder: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tight = _evaluate(speaker, folder, context=5)
    tokenizer = AutoTokenizer.from_pretrained(speaker)
    network = AutoModelForCausalLM.from_pretrained(speaker)
    samples = tight.samples_of("words_choose")
    assert tight.score("words_choose", "prompt_truncated").value == 1
    for sample in samples[:6]:
        words = [f"w{(sample.doc_id + 1 + shift) % 24}" for shift in (0, 7)]
        for word, response in zip(words, sample.responses, strict=True):
            tokens = [
                *tokenizer(sample.prompts[0]).input_ids,
                tokenizer.convert_tokens_to_ids(word),
            ]
            with torch.no_grad():
                logits = network(torch.tensor([tokens[-4:-1]])).logits[0, -1].log_softmax(-1)
            assert response[0] == pytest.approx(float(logits[tokens[-1]]), abs=1e-4)


@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
@pytest.mark.parametrize("context", [None, SHORT, 5])
def test_both_engines_tell_the_same(speaker: Path, folder: Path, context: int | None) -> None:
    hf = _evaluate(speaker, folder, context=context)
    vllm = _evaluate(speaker, folder, "vllm", context=context)
    assert hf.scores == vllm.scores
    assert hf.notes == vllm.notes
    for one, other in zip(hf.samples, vllm.samples, strict=True):
        assert (one.prompt_hash, one.values) == (other.prompt_hash, other.values)
        for ours, theirs in zip(one.responses, other.responses, strict=True):
            if isinstance(ours, str):
                assert ours == theirs
            else:
                assert ours[0] == pytest.approx(theirs[0], abs=1e-4)
