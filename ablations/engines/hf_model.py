"""An engine: lm-eval's transformers model, with texts as vLLM gives them.

What lm-eval does otherwise with HF than with vLLM:

- With a `think_end_token`, a task's stop strings count only after the thinking; lm-eval has HF stop
  at one inside it (`test_chat`).
- Special tokens inside an answer stay in its text, where stop strings must see them; the token that
  ends an answer, and what follows it, does not (`test_outcomes`). Word-level tokenizers put a space
  before each on HF; lm-eval tells vLLM to put none.
- An answer is the text that follows the prompt. lm-eval has HF decode it alone, where many
  tokenizers (SentencePiece's, word-level ones) drop the space before the first word; those of
  byte-level BPE do not (`test_spaces`).
- Log-likelihoods of a model in 16 bits are computed from its logits in float32, as by vLLM.
  lm-eval leaves them in 16 bits, so that choices of many tokens tie (`test_outcomes`).
- Of the model's own generation settings, only the tokens that end an answer count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    Collator,
    handle_stop_sequences,
    normalize_gen_kwargs,
)
from transformers import GenerationConfig, LogitsProcessorList

from ablations.engines.loading import fill_tensors
from ablations.engines.options import EngineOptions
from ablations.engines.stored_answers_lm import Generated, Prompt, TextPair
from ablations.models.load import check_complete
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix

_TAIL = 8
"""Tokens of a prompt before which an answer is decoded: enough that none is at a text's start."""


class HfModel(HFLM):  # type: ignore[misc]
    """A transformers model."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        """Load a checkpoint."""
        super().__init__(
            pretrained=model,
            device="cuda" if torch.cuda.is_available() else "cpu",
            dtype=options.dtype,
            batch_size=options.batch_size,
            max_length=options.max_model_len,
            trust_remote_code=False,
        )
        if self.model.dtype.itemsize < 4:
            # Else a sum of log-likelihoods is rounded to it: of 60 nats in bfloat16 to quarters.
            self.softmax_dtype = torch.float32
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        token_ids = {name: getattr(self.model.generation_config, name) for name in names}
        self.model.generation_config = GenerationConfig(**token_ids)

    def replace_network(self, network: Any) -> None:
        """Run another network, such as the present one (`model`) with an adapter on it."""
        network.generation_config = self.model.generation_config
        self._model = network

    def _create_model(self, pretrained: str, **options: Any) -> None:
        """Load the weights, where the files give all of them."""
        check_complete(pretrained, self.AUTO_MODEL_CLASS)
        super()._create_model(pretrained, **options)

    def check_names(self, names: Iterable[str]) -> None:
        """Check that every tensor has a parameter of its name, and no parameter is left over.

        Raises:
            LayerSwapError: for a tensor without a parameter, or a parameter that is left over.
        """
        tensors = self.model.state_dict(keep_vars=True)
        names = list(names)
        addresses = {tensors[name].data_ptr() for name in names if name in tensors}
        unmatched = [name for name in names if name not in tensors]
        unmatched += [n for n, tensor in tensors.items() if tensor.data_ptr() not in addresses]
        if unmatched:
            raise LayerSwapError(
                "transformers holds this model under other names than its checkpoint "
                f"({', '.join(unmatched[:3])}), so its tensors cannot be replaced in place"
            )

    def load(self, mixes: Mapping[str, TensorMix]) -> None:
        """Write tensors over the parameters of the same names, in their dtype.

        Raises:
            LayerSwapError: for another shape, or where a file is not as it was.
        """
        fill_tensors(mixes, self.model.state_dict(keep_vars=True), self.device)

    def reset_cache(self) -> None:
        """Do nothing: lm-eval has no cache between two runs on a transformers model."""

    def faulty_tensor(self) -> str | None:
        """Return the first weight that has NaN or infinity, None where none has."""
        tensors = self.model.state_dict().items()
        return next((name for name, t in tensors if not t.isfinite().all()), None)

    def close(self) -> None:
        """Do nothing: the model goes with this object."""

    def generate(self, prompts: Sequence[Prompt], keep: Callable[[int, Generated], None]) -> None:
        """Generate in the batches that lm-eval makes: by options, the longest prompts first."""
        batches = Collator(
            [(prompt.text, prompt.options, place) for place, prompt in enumerate(prompts)],
            sort_fn=lambda entry: prompts[entry[2]].longest_first,
            group_by="gen_kwargs",
        )
        for batch in batches.get_batched(n=self.batch_size):
            places = [place for _, _, place in batch]
            batched = [prompts[place] for place in places]
            for place, generated in zip(places, self._generate_batch(batched), strict=True):
                keep(place, generated)

    def _generate_batch(self, prompts: Sequence[Prompt]) -> Iterator[Generated]:
        """Generate the answers to prompts with equal options; yield them in order."""
        options: dict[str, Any] = normalize_gen_kwargs(dict(prompts[0].options), self.max_gen_toks)
        if options.get("do_sample"):
            options.setdefault("top_k", 0)  # transformers' own default is 50
        end = self._text([self.eot_token_id])
        until = handle_stop_sequences(options.pop("until", None), eos=end)
        may_think = prompts[0].may_think
        stop = [end] if may_think else until
        limit = options.pop("max_gen_toks")
        tokens = {"input_ids": [prompt.tokens for prompt in prompts]}
        batch = self.tokenizer.pad(tokens, padding_side="left", return_tensors="pt")
        context = batch["input_ids"]
        is_finite = torch.ones(len(prompts), dtype=torch.bool, device=self.device)

        def end_at_nan(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            nonlocal is_finite
            is_nan = scores.isnan().any(dim=-1)
            is_finite &= ~is_nan.view(len(prompts), -1).any(dim=-1)
            if is_nan.any():  # nothing can be drawn from NaN
                scores = scores.masked_fill(is_nan[:, None], -torch.inf)
                scores[is_nan, self.eot_token_id] = 0
            return scores

        rows = self._model_generate(
            context=context.to(self.device),
            attention_mask=batch["attention_mask"].to(self.device),
            stop=stop,
            max_length=options.pop("max_length", context.shape[1] + limit),
            logits_processor=LogitsProcessorList([end_at_nan]),
            **options,
        )
        # A batch runs until its last row is done: rows may hold more than their answer.
        for prompt, row, is_row_finite in zip(
            context[:, -_TAIL:].tolist(),
            rows[:, context.shape[1] :].tolist(),
            is_finite.tolist(),
            strict=True,
        ):
            answer = self._without_end(row)
            text = self._text(answer)
            is_stopped = any(mark and mark in text for mark in stop)
            # lm-eval strips the white space before an answer that follows thinking.
            lead = "" if may_think else self._lead(prompt, answer, text)
            is_truncated = len(answer) == len(row) and not is_stopped
            yield Generated(lead + text, until, is_truncated, is_row_finite)

    def score(
        self, pairs: Sequence[TextPair], keep: Callable[[int, tuple[float, bool]], None]
    ) -> None:
        """Score in the batches that lm-eval makes, which hands its results to a hook of caches."""
        self.set_cache_hook(SimpleNamespace(add_partial=lambda _, *result: keep(*result)))
        try:
            requests = [(place, *pair) for place, pair in enumerate(pairs)]
            self._loglikelihood_tokens(requests, disable_tqdm=True)
        finally:
            self.set_cache_hook(CacheHook(None))

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tok_decode(tokens, skip_special_tokens=False))

    def _without_end(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens before the first that ends an answer, by model or tokenizer."""
        stated = self.model.generation_config.eos_token_id
        ends_of_model = stated if isinstance(stated, (list, tuple)) else [stated]
        final = {self.eot_token_id, *ends_of_model}
        ends = (place for place, token in enumerate(tokens) if token in final)
        return tokens[: next(ends, len(tokens))]

    def _lead(self, prompt: list[int], answer: Sequence[int], text: str) -> str:
        """Return the white space between a prompt and its answer that is not in its `text`."""
        before, both = self._text(prompt), self._text([*prompt, *answer])
        if not (both.startswith(before) and both.endswith(text)):
            return ""
        lead = both[len(before) : len(both) - len(text)]
        return lead if lead.isspace() else ""
