"""Prompts and generation beyond the task, by lm-eval's names: chat template, sampling, repeats."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, StrictBool, StrictStr, model_validator

from layerswap_method.frozen import Described

MOST_REPEATS = 1000
"""Samples of an item at most; far more than anyone has time for."""


class GenKwargs(Described):
    """Settings of generation, in place of the task's own."""

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Temperature of sampling. Above 0 answers are sampled, at 0 the likeliest token is taken.
    Without it, the task's, which is 0 in the shipped benchmarks."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the likeliest tokens whose probabilities together reach this. Without it, from
    all tokens."""

    top_k: int | None = Field(default=None, ge=0)
    """Sample from this many of the likeliest tokens. Without it, or at 0, from all tokens."""

    max_gen_toks: int | None = Field(default=None, ge=1)
    """Limit of an answer in tokens, thinking included, and at most what the longest prompt leaves
    of the context. Without it, the task's limit, and at most half of the context."""

    do_sample: StrictBool | None = None
    """Accepted as lm-eval writes it. It follows from `temperature` and must agree with it."""

    @model_validator(mode="after")
    def _agree(self) -> GenKwargs:
        if self.do_sample is not None and self.do_sample is not self.is_sampled:
            raise ValueError(
                f"do_sample is {str(self.do_sample).lower()} and temperature is "
                f"{self.temperature}: answers are sampled when the temperature is above 0; leave "
                "do_sample out"
            )
        if not self.is_sampled and (self.top_p is not None or self.top_k is not None):
            raise ValueError(
                "top_p and top_k have no effect without sampling; set temperature above 0"
            )
        return self

    @property
    def is_sampled(self) -> bool:
        """Whether answers are drawn at random."""
        return bool(self.temperature)

    def as_lm_eval(self) -> dict[str, Any]:
        """Return the values that replace keys of a task's ``generation_kwargs``; empty for nothing.

        A sampled answer is drawn as it says here and not as the model's own generation settings
        say, which transformers would use for every key that is left out, and vLLM would not.
        """
        limit = {} if self.max_gen_toks is None else {"max_gen_toks": self.max_gen_toks}
        if self.temperature is None:
            return limit
        if not self.is_sampled:
            return {"do_sample": False, "temperature": 0.0, **limit}
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_k": self.top_k or 0,
            **limit,
        }


class EvaluationProtocol(Described):
    """Prompts and generation for every model. Settings that are left out are as in the task."""

    apply_chat_template: StrictBool = False
    """Whether prompts are written with the chat template of the model's tokenizer: the default one,
    where it has several."""

    system_instruction: StrictStr | None = Field(default=None, min_length=1)
    """Text of the system message; without a chat template it stands before the prompt."""

    fewshot_as_multiturn: StrictBool | None = None
    """Whether each example is a message of the user and one of the assistant, instead of a part of
    a single message. Without it, true with a chat template, as in lm-eval."""

    enable_thinking: StrictBool | None = None
    """Passed to the chat template, which writes the prompt with or without thinking. True needs
    `think_end_token`."""

    think_end_token: StrictStr | None = Field(default=None, min_length=1)
    """Token that ends the thinking, such as ``</think>``. Only the text after the last one counts
    as the answer, and the task's stop strings count only there. Thinking that was cut off is no
    answer."""

    gen_kwargs: GenKwargs = GenKwargs()
    """Settings of generation, in place of the task's own; see below."""

    repeats: int = Field(default=1, ge=1, le=MOST_REPEATS)
    """Sampled answers per item, each with its own seed. A score is their mean; its interval is over
    items, each averaged over its samples. More than one needs a temperature above 0."""

    @model_validator(mode="after")
    def _agree(self) -> EvaluationProtocol:
        if self.repeats > 1 and not self.gen_kwargs.is_sampled:
            raise ValueError(
                f"repeats is {self.repeats} and the temperature is "
                f"{self.gen_kwargs.temperature or 0:g}: every repeat would give the same answers; "
                "set gen_kwargs.temperature above 0, or leave repeats out"
            )
        if not self.apply_chat_template:
            for name in ("fewshot_as_multiturn", "enable_thinking"):
                if getattr(self, name):
                    raise ValueError(f"{name} needs a chat template; set apply_chat_template: true")
        if self.enable_thinking and self.think_end_token is None:
            raise ValueError(
                "enable_thinking needs think_end_token, such as </think>: without it the thinking "
                "would count as the answer"
            )
        return self

    @property
    def is_multiturn(self) -> bool:
        """Whether examples are turns of the chat."""
        if self.fewshot_as_multiturn is None:
            return self.apply_chat_template
        return self.fewshot_as_multiturn

    def overrides(self) -> dict[str, Any]:
        """Return the settings that differ from the task's own: part of what identifies a score.

        Two ways of writing the same give the same, and nothing gives an empty dict.
        """
        names = ["system_instruction", "think_end_token"]
        settings: dict[str, Any] = {}
        if self.apply_chat_template:
            settings["apply_chat_template"] = True
            settings["fewshot_as_multiturn"] = self.is_multiturn
            names.append("enable_thinking")
        if generation := self.gen_kwargs.as_lm_eval():
            settings["gen_kwargs"] = generation
        if self.repeats > 1:
            settings["repeats"] = self.repeats
        for name in names:
            value = getattr(self, name)
            if value is not None:
                settings[name] = value
        return settings

    @property
    def overrides_text(self) -> str:
        """`overrides` in a line, each as ``--set`` and a study's ``evaluate:`` take it."""
        return ", ".join(
            f"{name}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in self.overrides().items()
        )
