"""Chat templates on tokenizers made on the spot, on both engines and against lm-eval itself."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ablations.engines.answers import AnswerFile
from ablations.engines.chat import chat_template, chat_tokenizer, check_protocol, has_template
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import EngineOptions
from ablations.engines.stored_answers_lm import StoredAnswersLM
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.protocol import EvaluationProtocol, GenKwargs
from ablations.study.identity import protocol_key
from layerswap_method.errors import InputError
from tests.engines.backends import BACKENDS, VLLM
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.live_cells import OPTIONS
from tests.standins.word_models import WORDS, write_model

pytestmark = pytest.mark.filterwarnings("ignore")
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} <|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %} <think> </think>{% endif %}"
    "{% endif %}"
)
MARKS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<think>", "</think>"]
SAMPLED = GenKwargs(temperature=1.0, top_p=0.95)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A random model whose tokenizer has two chat templates."""
    from transformers import AutoTokenizer

    folder = write_model(
        tmp_path_factory.mktemp("models") / "talker",
        words=[*WORDS, *MARKS],
        max_position_embeddings=512,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = {"default": CHAT, "tools": "[tools]"}
    tokenizer.save_pretrained(folder)
    return folder


def test_a_template_that_came_or_changed_is_read(tmp_path):
    """In one process, as in a notebook: a merge written again, or the file that an error asks."""
    folder = write_model(tmp_path / "model")
    with pytest.raises(InputError, match="has no chat template"):
        chat_template(folder)
    for text in ("A {{ messages[0]['content'] }}", "B {{ messages[0]['content'] }}"):
        (folder / "chat_template.jinja").write_text(text)
        assert chat_template(folder) == text
        assert chat_tokenizer(folder).chat_template == text


def ask(model, folder, protocol, backend="hf", **changes):
    given = {"tasks": ("words_generate",), "limit": 4, **changes}
    request = EvaluationRequest(include_path=folder, **{**dict(protocol), **given})
    return evaluate_cold(model, request, backend, OPTIONS)


def test_the_default_template_is_found(talker, model):
    assert chat_template(talker) == CHAT
    assert (has_template(talker), has_template(model)) == (True, False)
    thinking = EvaluationProtocol(apply_chat_template=True, think_end_token="</think>")
    check_protocol(thinking, [talker])


@pytest.mark.parametrize(
    ("protocol", "match"),
    [
        ({"apply_chat_template": True}, r"random: its tokenizer has no chat template; leave out"),
        ({"think_end_token": "</thnk>"}, r"'</thnk>' is not in the vocabulary of its tokenizer"),
    ],
)
def test_what_a_tokenizer_lacks_is_said(talker, model, protocol, match):
    with pytest.raises(InputError, match=match):
        check_protocol(EvaluationProtocol(**protocol), [talker, model])


def test_a_template_that_fails_is_said_with_its_reason(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "failing")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system message') }}")
    with pytest.raises(InputError, match=r"failing: its chat template fails: no system message"):
        check_protocol(EvaluationProtocol(apply_chat_template=True), [folder])


def with_template(model, folder, template):
    """Copy a model with another chat template."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


SYSTEM = EvaluationProtocol(apply_chat_template=True, system_instruction="Answer in Swahili.")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}<|{{ m.role }}|> {{ m.content }}{% endfor %}<|assistant|>"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|> {{ m.content }}{% endfor %}"
    "<|assistant|>"
)


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (NO_SYSTEM, r"refuses a system message \(no system role\)"),  # Gemma 2
        (DROPS_SYSTEM, "leaves out the system message"),
    ],
)
def test_a_system_message_that_no_prompt_would_have_is_refused(template, fault, model, tmp_path):
    folder = with_template(model, tmp_path / "model", template)
    with pytest.raises(InputError, match=f"model: system_instruction: its chat template {fault}; "):
        check_protocol(SYSTEM, [folder])
    check_protocol(EvaluationProtocol(apply_chat_template=True), [folder])
    check_protocol(SYSTEM, [with_template(model, tmp_path / "other", CHAT)])


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_the_description_of_a_task_is_in_the_prompt_all_the_same(template, model, tasks, tmp_path):
    folder = with_template(model, tmp_path / "model", template)
    described = Path(shutil.copytree(tasks, tmp_path / "tasks"))
    with (described / "words_generate.yaml").open("a") as file:
        file.write("description: w23 w22\n")
    prompts = _prompts(ask(folder, described, EvaluationProtocol(apply_chat_template=True)))
    assert all(prompt.startswith("<|user|> w23 w22\n\nw") for prompt in prompts)


SMOLLM3 = (
    "{% if enable_thinking is defined and enable_thinking %}/think{% elif enable_thinking is "
    "defined %}/no_think{% else %}/unset{% endif %}{% for m in messages %} {{ m.content }}"
    "{% endfor %}"
)
GLM = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{{ '/nothink' if (enable_thinking is defined and not enable_thinking) else '' }}"
)


@pytest.mark.parametrize("template", [SMOLLM3, GLM])
def test_thinking_that_nobody_set_is_not_in_the_template(template, model, tmp_path):
    folder = with_template(model, tmp_path / "model", template)
    unset, no = {SMOLLM3: ("/unset w1", "/no_think w1"), GLM: ("w1", "w1/nothink")}[template]
    for thinking, expected in ((None, unset), (False, no)):
        protocol = EvaluationProtocol(apply_chat_template=True, enable_thinking=thinking)
        lm = StoredAnswersLM(None, protocol, chat_tokenizer(folder))
        assert lm.apply_chat_template([{"role": "user", "content": "w1"}]) == expected


def test_a_date_in_a_template_is_the_same_on_every_day(model, tasks, tmp_path):
    dated = "{{ strftime_now('%d %b %Y %S') }}{% for m in messages %} {{ m.content }}{% endfor %}"
    folder = with_template(model, tmp_path / "model", dated)
    evaluation = ask(folder, tasks, EvaluationProtocol(apply_chat_template=True))
    assert all(prompt.startswith("26 Jul 2024 00 w") for prompt in _prompts(evaluation))
    note = "the chat template may write today's date, which is 26 July 2024 in every prompt"
    assert note in evaluation.notes


def test_thinking_that_was_cut_off_is_no_answer(talker, tasks, tmp_path):
    limited = GenKwargs(max_gen_toks=3)
    mark = "w5"  # a word that it says now and then stands for the end of thinking
    plain = ask(talker, tasks, EvaluationProtocol(gen_kwargs=limited), limit=24)
    request = EvaluationRequest(
        tasks=("words_generate",), include_path=tasks, gen_kwargs=limited, think_end_token=mark
    )
    path = tmp_path / "answers.jsonl"
    with closing(start_model(talker, "hf", OPTIONS)) as lm:
        with AnswerFile(path) as answers:
            found = run_tasks(lm, resolve(request), talker, "hf", answers)
        cut = 0
        for before, after in zip(plain.samples, found.samples, strict=True):
            (text,), (answer,) = before.responses, after.responses
            is_cut = bool(before.values["truncated"]) and mark not in text
            cut += is_cut
            assert answer == ("" if is_cut else text.split(mark)[-1].lstrip())
        assert 0 < cut < 24
        (note,) = (note for note in found.notes if "thinking" in note)
        assert note.startswith(
            f"words_generate: the thinking of {cut} of 24 answers was cut off at 3"
        )
        assert not [note for note in found.notes if "are empty" in note]
        # Stored before that was noted: whether the text is an answer is not known.
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        unknown = sum(bool(line["is_truncated"]) for line in lines)
        for line in lines:
            del line["is_thinking"]
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        with AnswerFile(path) as answers:
            again = run_tasks(lm, resolve(request), talker, "hf", answers)
    assert again.samples == found.samples
    assert again.answers_before == 24 - unknown


def test_what_changes_a_score_changes_its_key():
    plain = EvaluationRequest(tasks=("a",))
    small = EngineOptions(batch_size=8)  # vLLM has no such thing
    assert protocol_key(plain, "hf", small) != protocol_key(plain, "hf", EngineOptions())
    assert protocol_key(plain, "vllm", small) == protocol_key(plain, "vllm", EngineOptions())
    keys = {
        protocol_key(plain.model_copy(update=dict(each)), "hf", EngineOptions())
        for each in (
            EvaluationProtocol(),
            EvaluationProtocol(apply_chat_template=True),
            EvaluationProtocol(system_instruction="Be short."),
            EvaluationProtocol(gen_kwargs=SAMPLED),
            EvaluationProtocol(gen_kwargs=SAMPLED, repeats=2),
            EvaluationProtocol(think_end_token="</think>"),
        )
    }
    assert len(keys) == 6
    large = EngineOptions(tensor_parallel_size=2)
    assert protocol_key(plain, "vllm", large) != protocol_key(plain, "vllm", EngineOptions())


def _by_lm_eval(model, tasks, out, *options):
    """Return the prompts that lm-eval's own command line sends."""
    run = "from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    command = [
        sys.executable,
        "-c",
        run,
        "run",
        "--model",
        "hf",
        "--limit",
        "4",
        "--model_args",
        f"pretrained={model},dtype=float32",
        "--include_path",
        str(tasks),
        "--tasks",
        "words_generate",
        "--output_path",
        str(out),
        "--batch_size",
        "4",
        "--log_samples",
        *options,
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stderr=subprocess.PIPE, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.rglob("samples_*.jsonl")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [line["arguments"]["gen_args_0"]["arg_0"] for line in lines]


def _prompts(evaluation):
    return [sample.prompts[0] for sample in evaluation.samples]


@pytest.mark.slow
def test_prompts_are_those_of_lm_evals_command_line(talker, tasks, tmp_path):
    asked = EvaluationProtocol(apply_chat_template=True, system_instruction="w1 w2")
    ours = _prompts(ask(talker, tasks, asked))
    options = ("--apply_chat_template", "--system_instruction", "w1 w2")
    assert ours == _by_lm_eval(talker, tasks, tmp_path, *options)
    assert ours[0].startswith("<|system|> w1 w2 <|end|>\n<|user|> ")
    assert ours[0].count("<|assistant|>") == 3
    single = asked.model_copy(update={"fewshot_as_multiturn": False})
    assert _prompts(ask(talker, tasks, single))[0].count("<|assistant|>") == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_vllm_gets_the_same_and_answers_like_transformers(talker, tasks, backend):
    thinking = {"enable_thinking": False, "think_end_token": "</think>"}
    long = GenKwargs(max_gen_toks=300)
    asked = EvaluationProtocol(apply_chat_template=True, gen_kwargs=long, **thinking)
    one, other = (ask(talker, tasks, asked, name) for name in ("hf", backend))
    assert _prompts(one) == _prompts(other)
    assert _prompts(one)[0].endswith("<|assistant|> <think> </think>")
    assert [each.responses for each in one.samples] == [each.responses for each in other.samples]


@pytest.mark.slow
def test_an_answer_is_what_follows_the_thinking(talker, tasks):
    limit = GenKwargs(max_gen_toks=40)
    plain = ask(talker, tasks, EvaluationProtocol(gen_kwargs=limit))
    said = str(plain.samples[0].responses[0]).split()
    end = said[len(said) // 2]  # a word that it says on the way stands for the end of thinking
    after = ask(talker, tasks, EvaluationProtocol(think_end_token=end, gen_kwargs=limit))
    whole, answer = (str(each.samples[0].responses[0]) for each in (plain, after))
    assert answer == whole.split(end)[-1].lstrip()
    assert 0 < len(answer) < len(whole)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_are_drawn_anew_and_alike_for_equal_seeds(talker, tasks, backend):
    sampled = EvaluationProtocol(gen_kwargs=SAMPLED, repeats=3)
    both = ("words_generate", "words_choose")
    first = ask(talker, tasks, sampled, backend, tasks=both)
    score = first.shown_score("words_generate")
    drawn = first.samples_of("words_generate")
    assert [sample.repeat for sample in drawn] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({sample.responses for sample in drawn if sample.doc_id == 0}) > 1
    assert len({sample.prompts for sample in drawn if sample.doc_id == 0}) == 1
    means = [
        sum(float(s.values["exact_match"]) for s in drawn if s.repeat == r) / 4 for r in range(3)
    ]
    assert (score.repeats, score.n) == (3, 4)
    assert score.value == pytest.approx(sum(means) / 3)
    # What is scored without being generated is asked once.
    assert first.shown_score("words_choose").repeats == 1
    assert len(first.samples_of("words_choose")) == 4
    again = ask(talker, tasks, sampled, backend)
    assert again.samples_of("words_generate") == drawn
    other = ask(talker, tasks, sampled, backend, seed=1)
    assert [s.responses for s in other.samples] != [s.responses for s in drawn]


def test_a_thinking_model_is_not_asked_to_choose(tasks):
    from ablations.engines.task_loading import check_data

    thinking = {"apply_chat_template": True, "enable_thinking": True, "think_end_token": "</think>"}
    request = EvaluationRequest(tasks=("words_choose",), include_path=tasks, **thinking)
    with pytest.raises(InputError, match="enable_thinking: words_choose scores given answers"):
        check_data([resolve(request)])
