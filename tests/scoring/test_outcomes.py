"""How each request went, against transformers asked directly; and with vLLM the same."""

import shutil
from contextlib import closing

import pytest
import torch
import yaml
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.engines.hf_model import HfModel
from ablations.engines.stored_answers_lm import TextPair
from ablations.scoring.evaluation import EvaluationRequest
from tests.engines.backends import BACKENDS, VLLM
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.live_cells import OPTIONS
from tests.standins.studies import write_yaml
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore")
TASKS = ("words_generate", "words_long", "words_stop", "words_choose")
SHORT = 12
"""Tokens of context: fewer than any prompt of `words_generate` has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tasks of the other tests, one with the same prompts and another limit, one that stops."""
    folder = write_tasks(tmp_path_factory.mktemp("outcomes") / "tasks")
    generate = yaml.safe_load((folder / "words_generate.yaml").read_text())
    stop = {"until": ["w3", "w7", "w11", "w19"], "max_gen_toks": 4}
    for name, options in (("words_long", {"max_gen_toks": 3}), ("words_stop", stop)):
        given = {**generate["generation_kwargs"], **options}
        write_yaml(folder / f"{name}.yaml", {**generate, "task": name, "generation_kwargs": given})
    return folder


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A random model that ends some of its answers by itself and not the others."""
    folder = write_model(tmp_path_factory.mktemp("speaker") / "model", seed=3)
    network = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.lm_head.weight[2] *= 1.5
    network.save_pretrained(folder)
    return folder


def _evaluate(model, folder, backend="hf", context=None):
    options = OPTIONS.model_copy(update={"max_model_len": context})
    request = EvaluationRequest(tasks=TASKS, include_path=folder)
    return evaluate_cold(model, request, backend, options)


@pytest.fixture(scope="module")
def whole(speaker, folder):
    return _evaluate(speaker, folder)


@pytest.fixture(scope="module")
def short(speaker, folder):
    return _evaluate(speaker, folder, context=SHORT)


@pytest.fixture(scope="module")
def directly(speaker):
    """The tokenizer, and what gives the log-probabilities of the next token."""
    network = AutoModelForCausalLM.from_pretrained(speaker)

    def next_token(tokens):
        with torch.no_grad():
            return network(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)

    return AutoTokenizer.from_pretrained(speaker), next_token


def _truncated(directly, samples, room, limit):
    """Ask transformers one prompt at a time: does no <eos> come within the limit?"""
    tokenizer, next_token = directly
    found = []
    for sample in samples:
        tokens = tokenizer(sample.prompts[0]).input_ids[-room:]
        for _ in range(limit):
            tokens.append(int(next_token(tokens).argmax()))
            if tokens[-1] == 2:
                break
        found.append(float(tokens[-1] != 2))
    return found


def _score(evaluation, task, metric):
    (score,) = (s for s in evaluation.scores if (s.task, s.metric) == (task, metric))
    return score


@pytest.mark.parametrize(("task", "limit"), [("words_generate", 8), ("words_long", 3)])
def test_an_answer_is_truncated_where_the_model_did_not_end_it(whole, directly, task, limit):
    samples, score = whole.samples_of(task), _score(whole, task, "truncated")
    assert [s.values["truncated"] for s in samples] == _truncated(directly, samples, 999, limit)
    assert 0 < score.value < 1
    assert (score.interval.method, score.higher_is_better, score.n) == ("wilson", False, 24)


def test_a_stop_string_ends_an_answer(whole):
    samples = whole.samples_of("words_stop")
    stopped = [sample for sample in samples if sample.values["truncated"] == 0]
    assert 0 < len(stopped) < len(samples)
    for sample in samples:
        words = sample.responses[0].split()
        assert not {"w3", "w7", "w11", "w19", "<eos>"} & set(words)
        # The limit leaves four words to an answer that was cut off.
        assert sample.values["truncated"] == float(len(words) == 4)


def test_what_does_not_fit_is_cut_from_the_left_and_said(whole, short, directly):
    # What this random model says begins with a stop string now and then.
    (empty,) = whole.notes
    assert empty.startswith("words_stop: 2 of 24 answers are empty")
    assert _score(whole, "words_generate", "prompt_truncated").value == 0
    assert _score(short, "words_generate", "prompt_truncated").value == 1
    assert "24 of 24 prompts (up to 20 tokens) do not fit the context of 12" in short.notes[0]
    assert short.notes[0].endswith("were cut from the left, so that their beginning is missing")
    assert "words_generate: answers end at 6 tokens and not at 8" in short.notes[1]
    # Three tokens are what the answer wants, and what it gets; the prompt has the rest.
    assert [note.split(":")[0] for note in short.notes if "answers end" in note] == [TASKS[0]]
    samples = short.samples_of("words_long")
    expected = _truncated(directly, samples, SHORT - 3, 3)
    assert [sample.values["truncated"] for sample in samples] == expected
    # The records keep the whole prompt.
    assert samples[0].prompt_hash == whole.samples_of("words_long")[0].prompt_hash


def test_a_likelihood_of_many_tokens_is_not_rounded_to_the_models_16_bits(tmp_path):
    """Sums of about 200 nats came in steps of 1: choices tied, and the first of them was taken."""
    folder = write_model(tmp_path / "model", seed=5, dtype=torch.bfloat16)
    network = AutoModelForCausalLM.from_pretrained(folder)
    context, found = [1, 5], {}
    choices = [[4 + (n * step) % 24 for n in range(1, 61)] for step in (1, 5, 7, 11)]
    with closing(HfModel(str(folder), OPTIONS.model_copy(update={"dtype": "auto"}))) as model:
        model.score([TextPair(context, choice) for choice in choices], found.__setitem__)
    for place, choice in enumerate(choices):
        with torch.no_grad():
            logits = network(torch.tensor([[*context, *choice]])).logits[0, 1:-1].double()
        exact = logits.log_softmax(-1).gather(1, torch.tensor(choice)[:, None]).sum().item()
        assert found[place][0] == pytest.approx(exact, abs=0.01)


@pytest.fixture(scope="module")
def with_bos(speaker, tmp_path_factory):
    """The same model with a tokenizer that puts a BOS before each text."""
    folder = shutil.copytree(speaker, tmp_path_factory.mktemp("bos") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bos_of_a_prompt_that_is_cut_comes_first(with_bos, folder, directly, backend):
    tokenizer, next_token = directly
    bos = tokenizer.bos_token_id
    short = _evaluate(with_bos, folder, backend, context=SHORT)
    assert _score(short, "words_long", "prompt_truncated").value == 1
    for sample in short.samples_of("words_long")[:6]:
        tokens = [bos, *tokenizer(sample.prompts[0]).input_ids[-(SHORT - 3 - 1) :]]
        first = tokenizer.decode(int(next_token(tokens).argmax()))
        assert sample.responses[0].split()[:1] == ([] if first == "<eos>" else [first])
    for sample in short.samples_of("words_choose")[:6]:
        (score, _), *_ = sample.responses
        word = f"w{(sample.doc_id + 1) % 24}"
        tokens = [bos, *tokenizer(sample.prompts[0]).input_ids][: SHORT - 2]
        expected = float(next_token(tokens)[tokenizer.convert_tokens_to_ids(word)])
        assert score == pytest.approx(expected, abs=1e-4)
    lowest = _evaluate(with_bos, folder, backend, context=5)
    for sample in lowest.samples_of("words_choose")[:6]:
        tokens = [bos, *tokenizer(sample.prompts[0]).input_ids[-2:]]
        word = tokenizer.convert_tokens_to_ids(f"w{(sample.doc_id + 1) % 24}")
        assert sample.responses[0][0] == pytest.approx(float(next_token(tokens)[word]), abs=1e-4)


@pytest.mark.parametrize(("context", "room"), [(None, 999), (5, 3)])
def test_choices_are_scored_after_as_much_of_the_prompt_as_vllm_takes(
    speaker, folder, directly, context, room
):
    found = _evaluate(speaker, folder, context=context)
    tokenizer, next_token = directly
    assert _score(found, "words_choose", "prompt_truncated").value == (context is not None)
    for sample in found.samples_of("words_choose")[:6]:
        # `choices` of item i (from 1) are words i and i + 7.
        words = [f"w{(sample.doc_id + 1 + shift) % 24}" for shift in (0, 7)]
        logits = next_token(tokenizer(sample.prompts[0]).input_ids[-room:])
        for word, response in zip(words, sample.responses, strict=True):
            expected = float(logits[tokenizer.convert_tokens_to_ids(word)])
            assert response[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "context", [pytest.param(context, marks=VLLM) for context in (None, SHORT, 5)]
)
def test_both_engines_tell_the_same(speaker, folder, context):
    hf, vllm = (_evaluate(speaker, folder, backend, context) for backend in ("hf", "vllm"))
    assert (hf.scores, hf.notes) == (vllm.scores, vllm.notes)
    for one, other in zip(hf.samples, vllm.samples, strict=True):
        assert (one.prompt_hash, one.values) == (other.prompt_hash, other.values)
        for ours, theirs in zip(one.responses, other.responses, strict=True):
            if isinstance(ours, str):
                assert ours == theirs
            else:
                assert ours[0] == pytest.approx(theirs[0], abs=1e-4)
