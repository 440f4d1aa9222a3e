"""What a model says of a probe text, and whether it still says that after its weights were loaded.

Loading weights into a running vLLM has given garbage without an error for some architectures
(vLLM issues 29341, 32718 and 52479). Knows lm-eval's requests; not how tensors get in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TEXTS = (
    ("Nairobi is the capital of", " Kenya. Nairobi ni mji mkuu wa Kenya."),
    ("A farmer has 12 goats and buys 5 more. Now the farmer has", " 12 + 5 = 17 goats."),
    ("Mto huu una urefu wa kilomita 12.", " This river is 12 kilometres long."),
)
"""Texts whose second parts are scored, beside one of the tokenizer's own words."""

_OWN_TOKENS = 24
"""Tokens in that one."""

_ANSWER_TOKENS = 16

NATS_PER_TOKEN = 0.01
"""How far a mean log-likelihood may move by rounding. On a processor it did not move at all; a
weight that is not where it belongs costs whole nats."""


@dataclass(frozen=True)
class Said:
    """What a model says of the probe."""

    log_likelihoods: tuple[float, ...]
    """Per text: mean log-likelihood of a token of its second part, in nats."""

    answer: str
    """The greedy answer to the first part of the tokenizer's own words."""


@dataclass(frozen=True)
class Expected:
    """What an engine says of the probe with the weights that it was started with, asked twice."""

    first: Said
    second: Said

    def why_not(self, now: Said) -> str | None:
        """Return how `now` differs by more than rounding, None where it does not.

        An engine that does not repeat itself with untouched weights is compared as far as it does:
        what its log-likelihoods moved by is allowed twice more, and of several answers none
        decides.
        """
        for one, other, found in zip(
            self.first.log_likelihoods,
            self.second.log_likelihoods,
            now.log_likelihoods,
            strict=True,
        ):
            allowed = NATS_PER_TOKEN + 2 * abs(one - other)
            # Written so that NaN differs from every number, and from itself it does not.
            if not (abs(found - one) <= allowed or (found != found and one != one)):
                return f"a log-likelihood of {one:.4f} nats a token became {found:.4f}"
        if self.first.answer == self.second.answer != now.answer:
            return f"the greedy answer {self.first.answer!r} became {now.answer!r}"
        return None


def ask_probe(lm: Any) -> Said:
    """Return what lm-eval's model object says of the probe."""
    from lm_eval.api.instance import Instance

    own = _own_words(lm.tokenizer)
    asked_of = (*_TEXTS, own)
    scored = [
        Instance("loglikelihood", {}, texts, 0, ("the probe", index, 1))
        for index, texts in enumerate(asked_of)
    ]
    settings = {"until": [], "do_sample": False, "max_gen_toks": _ANSWER_TOKENS}
    asked = Instance("generate_until", {}, (own[0], settings), 0, ("the probe", 0, 1))
    counts = [max(1, len(lm.tok_encode(second))) for _, second in asked_of]
    found = lm.loglikelihood(scored, disable_tqdm=True)
    # What is left of the task before would cut the thinking out of this answer.
    ends_thinking, lm.think_end_token = lm.think_end_token, None
    try:
        (answer,) = lm.generate_until([asked], disable_tqdm=True)
    finally:
        lm.think_end_token = ends_thinking
    sums = [float(log_likelihood) for log_likelihood, _ in found]
    means = tuple(each / count for each, count in zip(sums, counts, strict=True))
    return Said(means, str(answer))


def _own_words(tokenizer: Any) -> tuple[str, str]:
    """Return two texts of tokens from all over the vocabulary.

    To a small tokenizer the words of other texts are all unknown, and say nothing of its model.
    """
    special = set(tokenizer.all_special_ids)
    known = [token for token in range(len(tokenizer)) if token not in special]
    step = max(1, len(known) // _OWN_TOKENS)
    chosen = known[step // 2 :: step][:_OWN_TOKENS]
    half = len(chosen) // 2
    first, second = (tokenizer.decode(part) for part in (chosen[:half], chosen[half:]))
    return f"{_TEXTS[0][0]} {first}", f" {second.lstrip()}"
