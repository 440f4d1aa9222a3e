"""The space between a prompt and its answer, by kind of tokenizer: both engines, one text."""

import pytest

from ablations.scoring.evaluation import EvaluationRequest
from tests.engines.backends import VLLM
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.live_cells import OPTIONS
from tests.standins.tokenizers import SPECIAL
from tests.standins.word_models import WORDS, write_model

pytestmark = pytest.mark.filterwarnings("ignore")
TASK = "words_generate"


def _spell(folder, kind):
    """Give the model a tokenizer with the same 28 ids that spells a space another way.

    ``metaspace`` is SentencePiece's way (a text's first space is dropped when decoded), ``bytes``
    that of byte-level BPE (it is kept); ``words`` has no spaces at all.
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


def _answers(model, tasks, backend="hf"):
    request = EvaluationRequest(tasks=(TASK,), include_path=tasks, limit=8)
    return evaluate_cold(model, request, backend, OPTIONS).samples


@pytest.fixture(params=["words", "metaspace", "bytes"])
def speaker(request, tmp_path):
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


def test_an_answer_is_what_follows_its_prompt(speaker, tasks):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(speaker)
    for sample in _answers(speaker, tasks):
        (text,) = sample.responses
        words = text.split()
        assert words
        # One space before every word: none is lost, none comes twice.
        assert text == "".join(f" {word}" for word in words)
        # What the tokenizer makes of both, its tokens one after the other.
        ids = tokenizer(sample.prompts[0], add_special_tokens=False).input_ids
        both = tokenizer.decode([*ids, *tokenizer(text, add_special_tokens=False).input_ids])
        assert both.endswith(f"{sample.prompts[0].split()[-1]}{text}")


@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_both_engines_say_the_same_text(speaker, tasks, backend):
    hf, vllm = (_answers(speaker, tasks, name) for name in ("hf", backend))
    assert [each.responses for each in hf] == [each.responses for each in vllm]
