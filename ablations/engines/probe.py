"""What a model answers to a probe, and whether it still does after its weights were loaded.

Loading weights into a running vLLM has given garbage without an error for some architectures
(vLLM issues 29341, 32718 and 52479).
"""

from __future__ import annotations

from typing import Any, NamedTuple

_TEXTS = (
    ("Nairobi is the capital of", " Kenya. Nairobi ni mji mkuu wa Kenya."),
    ("A farmer has 12 goats and buys 5 more. Now the farmer has", " 12 + 5 = 17 goats."),
    ("Mto huu una urefu wa kilomita 12.", " This river is 12 kilometres long."),
)
"""Texts whose second parts are scored, like one of the tokenizer's own words."""

_OWN_TOKENS = 24
_ANSWER_TOKENS = 16

NATS_PER_TOKEN = 0.01
"""How far a mean log-likelihood may move by rounding. On a processor it did not move at all; a
weight that is not where it belongs costs whole nats."""


class ProbeAnswers(NamedTuple):
    """What a model answers."""

    log_likelihoods: tuple[float, ...]
    """Per text: mean log-likelihood of a token of its second part, in nats."""

    text: str
    """The greedy answer to the first part of the tokenizer's own words."""


class Baseline(NamedTuple):
    """Two answers of an engine to the probe with the weights that it was started with."""

    first: ProbeAnswers
    second: ProbeAnswers

    def mismatch(self, now: ProbeAnswers) -> str | None:
        """Return how `now` differs by more than rounding, None where it does not.

        An engine that does not repeat itself with untouched weights is compared as far as it does:
        what its log-likelihoods moved by is allowed twice more, and of several texts none decides.
        """
        pairs = zip(self.first.log_likelihoods, self.second.log_likelihoods, strict=True)
        for (one, other), value in zip(pairs, now.log_likelihoods, strict=True):
            allowed = NATS_PER_TOKEN + 2 * abs(one - other)
            # Written so that NaN differs from every number, and from itself it does not.
            if not (abs(value - one) <= allowed or (value != value and one != one)):
                return f"a log-likelihood of {one:.4f} nats a token became {value:.4f}"
        if self.first.text == self.second.text != now.text:
            return f"the greedy answer {self.first.text!r} became {now.text!r}"
        return None


def ask_probe(lm: Any) -> ProbeAnswers:
    """Return what lm-eval's model object answers to the probe."""
    from lm_eval.api.instance import Instance

    texts = (*_TEXTS, _own_words(lm.tokenizer))
    scored = [
        Instance("loglikelihood", {}, pair, 0, ("the probe", index, 1))
        for index, pair in enumerate(texts)
    ]
    settings = {"until": [], "do_sample": False, "max_gen_toks": _ANSWER_TOKENS}
    generated = Instance("generate_until", {}, (texts[-1][0], settings), 0, ("the probe", 0, 1))
    sums = [float(log_likelihood) for log_likelihood, _ in lm.loglikelihood(scored)]
    counts = [max(1, len(lm.tok_encode(second))) for _, second in texts]
    # What is left of the task before would cut the thinking out of this answer.
    think_end, lm.think_end_token = lm.think_end_token, None
    try:
        (answer,) = lm.generate_until([generated])
    finally:
        lm.think_end_token = think_end
    means = tuple(total / count for total, count in zip(sums, counts, strict=True))
    return ProbeAnswers(means, str(answer))


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
