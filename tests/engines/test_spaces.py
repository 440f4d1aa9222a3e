"""The space between a prompt and its answer, by kind of tokenizer: both engines, one text."""

from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Evaluation, EvaluationRequest
from tests.standins.cold import evaluate_cold
from tests.standins.talkers import WORDS, write_model
from tests.standins.tasks import write_tasks
from tests.standins.tokenizers import SPECIAL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TASK = "words_generate"


def _spell(folder: Path, kind: str) -> None:
    """Give the model a tokenizer with the same 28 ids that spells a space another way.

    Args:
        folder: of the model.
        kind: ``metaspace`` is SentencePiece's (a text's first space is dropped when decoded),
            ``bytes`` that of byte-level BPE (it is kept), ``words`` has no spaces at all.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if kind == "words":
        return
    mark = {"metaspace": "▁", "bytes": "Ġ"}[kind]
    names = [*SPECIAL, *(mark + word for word in WORDS)]
    tokenizer = Tokenizer(
        models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>")
    )
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(" ", "merged_with_next"),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
        padding_side="left",
        model_max_length=128,
    ).save_pretrained(folder)


def _answers(model: Path, tasks: Path, backend: str = "hf") -> Evaluation:
    options = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)
    request = EvaluationRequest(tasks=(TASK,), include_path=tasks, limit=8)
    return evaluate_cold(model, request, backend, options)


@pytest.fixture(params=["words", "metaspace", "bytes"])
def speaker(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model that never ends an answer, so that there is a first word."""
    import torch
    from transformers import LlamaForCausalLM

    folder = write_model(tmp_path / request.param)
    network = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.lm_head.weight[2] = 0
    network.save_pretrained(folder)
    _spell(folder, request.param)
    return folder


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


def test_an_answer_is_what_follows_its_prompt(speaker: Path, local: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(speaker)
    for sample in _answers(speaker, local).samples_of(TASK):
        (text,) = sample.responses
        assert isinstance(text, str)
        words = text.split()
        assert words
        # One space before every word: none is lost, none comes twice.
        assert text == "".join(f" {word}" for word in words)
        # What the tokenizer makes of both, its tokens one after the other.
        ids = tokenizer(sample.prompts[0], add_special_tokens=False).input_ids
        both = tokenizer.decode([*ids, *tokenizer(text, add_special_tokens=False).input_ids])
        assert both.endswith(f"{sample.prompts[0].split()[-1]}{text}")


@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_both_engines_say_the_same_text(speaker: Path, local: Path) -> None:
    hf, vllm = (_answers(speaker, local, backend) for backend in ("hf", "vllm"))
    assert [each.responses for each in hf.samples] == [each.responses for each in vllm.samples]
