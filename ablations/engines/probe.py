"""What a model answers to a probe, and whether it still does after its weights were loaded.

Loading weights into a running vLLM has given garbage without an error for some architectures
(vLLM issues 29341, 32718 and 52479).
"""

from __future__ import annotations

from typing import Any, NamedTuple

_PROBE_TOKENS = 48
_ANSWER_TOKENS = 16

NATS_PER_TOKEN = 0.01
"""How far a mean log-likelihood may move by rounding. On a processor it did not move at all; a
weight that is not where it belongs costs whole nats."""


class ProbeAnswers(NamedTuple):
    """What a model answers."""

    log_likelihood: float
    """Mean of a token of the probe's second half, in nats."""

    text: str
    """The greedy answer to its first half."""


class Baseline(NamedTuple):
    """Two answers of an engine to the probe with the weights that it was started with."""

    first: ProbeAnswers
    second: ProbeAnswers

    def mismatch(self, now: ProbeAnswers) -> str | None:
        """Return how `now` differs by more than rounding, None where it does not.

        An engine that does not repeat itself with untouched weights is compared as far as it does:
        twice the distance of its two log-likelihoods is allowed; texts that differ do not count.
        """
        before, after = self.first.log_likelihood, now.log_likelihood
        allowed = NATS_PER_TOKEN + 2 * abs(before - self.second.log_likelihood)
        # Written so that NaN differs from every number, and from itself it does not.
        if not (abs(after - before) <= allowed or (after != after and before != before)):
            return f"a log-likelihood of {before:.4f} nats a token became {after:.4f}"
        if self.first.text == self.second.text != now.text:
            return f"the greedy answer {self.first.text!r} became {now.text!r}"
        return None


def ask_probe(lm: Any) -> ProbeAnswers:
    """Return what lm-eval's model object answers to the probe: tokens from all its vocabulary."""
    from lm_eval.api.instance import Instance

    special = set(lm.tokenizer.all_special_ids)
    known = [token for token in range(len(lm.tokenizer)) if token not in special]
    tokens = [known[place * len(known) // _PROBE_TOKENS] for place in range(_PROBE_TOKENS)]
    half = _PROBE_TOKENS // 2
    first, second = (lm.tokenizer.decode(part) for part in (tokens[:half], tokens[half:]))
    pair = (first, f" {second.lstrip()}")
    options = {"until": [], "do_sample": False, "max_gen_toks": _ANSWER_TOKENS}
    scored = Instance("loglikelihood", {}, pair, 0, ("the probe", 0, 1))
    generated = Instance("generate_until", {}, (first, options), 0, ("the probe", 0, 1))
    # What is left of the task before would cut the thinking out of this answer.
    think_end, lm.think_end_token = lm.think_end_token, None
    try:
        ((log_likelihood, _),) = lm.loglikelihood([scored])
        (text,) = lm.generate_until([generated])
    finally:
        lm.think_end_token = think_end
    return ProbeAnswers(log_likelihood / max(1, len(lm.tok_encode(pair[1]))), text)
