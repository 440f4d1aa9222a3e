"""Word problems: seven kinds, drawn without a language."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from ablations.pocket.world import Step
from ablations.smol.languages import Sentence, table


class Problem(NamedTuple):
    """A word problem: the last sentence asks, the last step answers."""

    kind: str
    sentences: tuple[Sentence, ...]
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The number that is asked for."""
        return self.steps[-1].result

    @property
    def thought(self) -> str:
        """The steps as text, the same in every language."""
        return " ".join(f"{step}." for step in self.steps)

    @property
    def key(self) -> str:
        """What the problem is about, without names: kind, thing and numbers."""
        return f"{self.kind}/{self.sentences[-1].slots['o']}/{self.thought}"


class Draw:
    """Draws people, things and sentences from one random stream."""

    def __init__(self, rng: random.Random) -> None:
        """Draw from `rng` from now on."""
        self.rng = rng

    def who_and_what(self) -> dict[str, str | int]:
        """Return two different names for the slots n and m, and a thing for o."""
        first, second = self.rng.sample(table()["names"], 2)
        return {"n": first, "m": second, "o": self.index("things")}

    def index(self, form: str) -> int:
        """Return a place in a list of `languages.yml`."""
        return self.rng.randrange(len(table()["en"][form]))

    def sentence(self, form: str, **slots: str | int) -> Sentence:
        """Return a sentence of a form, with one of its wordings."""
        return Sentence(form, self.index(form), slots)

    def change(self, owned: int, **slots: str | int) -> tuple[Sentence, Step]:
        """Return a gain or a loss of 2 to 15, and what is owned after it."""
        is_gain = owned < 4 or self.rng.random() < 0.5
        count = self.rng.randint(2, 15 if is_gain else min(15, owned - 1))
        sentence = self.sentence("gain" if is_gain else "loss", **slots, b=count)
        return sentence, Step.change(owned, count if is_gain else -count)


def _changes(draw: Draw, number: int) -> Problem:
    start = draw.rng.randint(6, 40)
    slots = draw.who_and_what()
    sentences, steps = [draw.sentence("start", **slots, a=start)], list[Step]()
    for _ in range(number):
        sentence, step = draw.change(steps[-1].result if steps else start, **slots)
        sentences.append(sentence)
        steps.append(step)
    kind = "one change" if number == 1 else "two changes"
    return Problem(kind, (*sentences, draw.sentence("ask_now", **slots)), tuple(steps))


def _comparison(draw: Draw) -> Problem:
    start, count = draw.rng.randint(8, 40), draw.rng.randint(2, 15)
    is_more = start <= count or draw.rng.random() < 0.5
    slots = draw.who_and_what()
    compare = Sentence("compare", 0 if is_more else 1, {**slots, "b": count})
    sentences = (draw.sentence("start", **slots, a=start), compare)
    step = Step.change(start, count if is_more else -count)
    return Problem("comparison", (*sentences, draw.sentence("ask_other", **slots)), (step,))


def _total(draw: Draw) -> Problem:
    one, other = draw.rng.randint(4, 40), draw.rng.randint(4, 40)
    slots = draw.who_and_what()
    sentences = (
        Sentence("start", 0, {**slots, "a": one}),
        draw.sentence("has", **slots, p=slots["o"], b=other),
        draw.sentence("ask_both", **slots),
    )
    return Problem("total", sentences, (Step(one, "+", other),))


def _groups(draw: Draw) -> Problem:
    each, number = draw.rng.randint(2, 12), draw.rng.randint(2, 9)
    slots = draw.who_and_what()
    sentences = (draw.sentence("groups", **slots, a=each, b=number),)
    return Problem(
        "groups", (*sentences, draw.sentence("ask_all", **slots)), (Step(number, "*", each),)
    )


def _daily(draw: Draw) -> Problem:
    each, days, which = draw.rng.randint(2, 12), draw.rng.randint(2, 9), draw.index("daily")
    slots = {**draw.who_and_what(), "a": each, "b": days}
    sentences = (Sentence("daily", which, slots), Sentence("ask_daily", which, slots))
    return Problem("daily", sentences, (Step(days, "*", each),))


def _sharing(draw: Draw) -> Problem:
    each, children = draw.rng.randint(2, 12), draw.rng.randint(2, 9)
    slots = draw.who_and_what()
    sentences = (
        draw.sentence("share", **slots, a=each * children, b=children),
        draw.sentence("ask_share", **slots),
    )
    return Problem("sharing", sentences, (Step(each * children, "/", children),))


KINDS: dict[str, tuple[float, Callable[[Draw], Problem]]] = {
    "one change": (0.25, lambda draw: _changes(draw, 1)),
    "two changes": (0.20, lambda draw: _changes(draw, 2)),
    "comparison": (0.15, _comparison),
    "total": (0.10, _total),
    "groups": (0.12, _groups),
    "daily": (0.10, _daily),
    "sharing": (0.08, _sharing),
}
"""Kind -> its share of the problems, and what draws one."""


def draw_problem(rng: random.Random) -> Problem:
    """Return a problem of a random kind."""
    shares, makers = zip(*KINDS.values(), strict=True)
    problem: Problem = rng.choices(makers, shares)[0](Draw(rng))
    return problem
