"""What a study file may say. Knows types and their ranges; not experts' files, nor depths.

A study is a grid of merges, each to be evaluated: ``recipe × vary × experts`` plus ``baseline``
models of the same experts, all asked the same tasks. `vary` can choose the experts, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from ablations.engines.options import EngineOptions
from ablations.sandbox.programs import Isolation
from ablations.scoring.records import Seed
from layerswap_method.frozen import Frozen

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
"""One value of a varied parameter."""

_Names = Annotated[tuple[StrictStr, ...], Field(min_length=1)]

Value = Scalar | _Names
"""One value of what is varied: of a parameter, or the name or names of experts."""

Number = StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
"""A measured fact of an expert."""

Setting = Mapping[str, Value]
"""What `vary` says of one cell: name -> value."""

EXPERTS = "experts."
"""Begins the names in `vary` that choose experts: ``experts.task``, ``experts.base``."""

SUGGEST = "suggest"
"""In `vary`: the layer counts that `layerswap suggest` proposes for the experts at hand."""

BaselineKind = Literal["base", "task_expert", "language_expert", "soup", "weighted_soup", "ties"]
"""What a recipe is compared with."""

Kind = Literal["recipe", BaselineKind]
"""What a cell is."""

Table = Literal["pairs", "overview", "souping", "parameters"]
"""Layouts of a report: the paper's Tables 1, 2 and 6, and one table per varied parameter."""

Rival = Literal[BaselineKind, "better_expert", "first_setting"]
"""What a primary comparison compares the swap with."""

BASELINE_ROLES: Mapping[BaselineKind, tuple[str, ...]] = {
    "base": ("base",),
    "task_expert": ("task",),
    "language_expert": ("language",),
    "soup": ("task", "language"),
    "weighted_soup": ("task", "language", "base"),
    "ties": ("task", "language", "base"),
}
"""Roles of the experts that a baseline is made of."""


class Pools(Frozen):
    """Names of experts per role; every task expert is paired with every language expert."""

    base: StrictStr = "base"
    """The shared pretrained parent: donor of config and tokenizer, origin of deltas."""

    task: tuple[StrictStr, ...] = ()
    """Task experts; may be left out where every setting of `vary` names its own."""

    language: tuple[StrictStr, ...] | dict[str, _Names] = ()
    """Language experts: a list, or language code -> list (see `Evaluate.languages`)."""

    facts: dict[str, dict[str, Number]] = Field(default_factory=dict)
    """Name of an expert -> what was measured of it; see `ReportBlock.facts`. Those of the experts
    file are added, and win where both say one."""

    @model_validator(mode="before")
    @classmethod
    def _single_names(cls, data: Any) -> Any:
        """Take one name where a list of names is meant."""
        if not isinstance(data, dict):
            return data
        listed = {
            role: [data[role]] for role in ("task", "language") if isinstance(data.get(role), str)
        }
        return {**data, **listed}

    def languages(self) -> dict[str, str]:
        """Return expert name -> language code, for pools that are given by language."""
        if not isinstance(self.language, dict):
            return {}
        return {name: code for code, names in self.language.items() for name in names}

    def names(self, role: str) -> tuple[str, ...]:
        """Return the experts of ``base``, ``task`` or ``language``."""
        return {"base": (self.base,), "task": self.task, "language": self.language_names()}[role]

    def language_names(self) -> tuple[str, ...]:
        """Return all language experts in the order of the study."""
        if not isinstance(self.language, dict):
            return self.language
        return tuple(name for names in self.language.values() for name in names)


class Evaluate(Frozen):
    """What every cell is asked, and how the engine runs it."""

    tasks: tuple[StrictStr, ...] = ()
    """lm-eval task, group or tag names that every cell is asked."""

    languages: dict[str, _Names] = Field(default_factory=dict)
    """Language code -> tasks: asked of cells whose language expert is of that language, and of
    cells without a language expert. Needs `experts.language` by language code."""

    benchmarks: tuple[StrictStr, ...] = ()
    """Shipped benchmarks (``mgsm``, ``belebele``, ``flores``, ``mbpp``, ``mmlu``): their tasks are
    added to `languages`, for every language code of `experts.language`."""

    include_path: StrictStr | None = None
    """Folder of the task files, from the working directory. None: the `include_path` of the
    experts file, else the shipped tasks. The experts file wins where both say one."""

    data_dir: StrictStr | None = None
    """Folder with the data of shipped tasks, from the working directory, in place of the hub."""

    allow_code_execution: StrictBool = False
    """Whether tasks that run generated programs (``mbpp``) are asked; else they are skipped."""

    code_isolation: Isolation = "bwrap"
    """What holds those programs: ``bwrap``, or ``none`` where the container is the sandbox."""

    limit: int | None = Field(default=None, ge=1)
    """Items per task, from the first; null asks all. Left out: what the experts file says."""

    seed: Seed = 0
    """Of few-shot sampling and bootstrap."""

    level: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of the intervals."""

    options: EngineOptions = EngineOptions()
    """How the engine runs the models; what is left out is as the experts file says."""


class PrimaryBlock(Frozen):
    """The primary comparisons: corrected together; all others of the report are exploratory."""

    against: tuple[Rival, ...] = ()
    """What the swap is compared with: a baseline of the study, ``better_expert`` (the task or the
    language expert, whichever scores better), or ``first_setting`` (every setting of `vary`
    against the first one). Empty: the soup and the better expert where they are baselines of the
    study, else ``first_setting``, else every baseline."""

    tasks: tuple[StrictStr, ...] = ()
    """On which tasks. Empty: the first task in the target language."""

    setting: dict[str, Value] | None = None
    """The setting of `vary` that is compared with the models of `against`. None: the best of
    several, which is chosen on one half of the items and tested on the other half."""


class ReportBlock(Frozen):
    """What the report shows."""

    primary: PrimaryBlock = PrimaryBlock()
    """The comparisons that answer the question."""

    tables: tuple[Table, ...] = ()
    """Layouts; empty shows those that fit the study."""

    tasks: tuple[StrictStr, ...] = ()
    """Tasks in the order of the columns; empty shows all in the order of the request."""

    metric: StrictStr | None = None
    """lm-eval metric to show; None takes the first of each task."""

    facts: tuple[StrictStr, ...] = ()
    """Facts of varied experts, such as ``experts.task.divergence``: each gives a figure of the
    scores over it. The fact of several experts is their mean."""


class Study(Frozen):
    """A study file."""

    name: StrictStr = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Lower-case letters, digits, ``_`` and ``-``; names the output folder."""

    question: StrictStr = Field(min_length=1)
    """Printed over the tables."""

    source: StrictStr = ""
    """Where the question comes from: paper, section, equation."""

    recipe: dict[str, Any] | None = None
    """A mergekit recipe as template: the models ``task``, ``language`` and ``base`` stand for the
    expert of that role; any other name is looked up in the experts file. In a study file also the
    path of a file that holds it, from the folder of the study file."""

    baseline: tuple[BaselineKind, ...] = ()
    """Models beside the recipe's: the unmerged ones and mergekit's own merges."""

    vary: dict[str, tuple[Value, ...]] | tuple[dict[str, Value], ...] | None = None
    """A grid (parameter -> values, all combined) or a list of settings, each a cell. A name is a
    key of the recipe, one of its `parameters`, a path such as ``models.0.parameters.weight``, or a
    role: ``experts.task``, ``experts.language`` (one name, or a list of names that are paired with
    all of the other role) or ``experts.base``. ``suggest: true`` takes the layer counts that
    `layerswap suggest` proposes for the experts, found when the study is planned."""

    reference_layers: int | None = Field(default=None, ge=1)
    """Depth that layer counts (and `revert_layers`) are given for; they are scaled to the model's
    depth. Left out: they are the model's."""

    experts: Pools
    """The experts by role."""

    experts_file: StrictStr | None = None
    """Default of ``--experts``, from the folder of the study file."""

    evaluate: Evaluate
    """The protocol."""

    report: ReportBlock = ReportBlock()
    """What the report shows."""

    def settings(self) -> tuple[dict[str, Value], ...]:
        """Return every setting of `vary`, in order; one empty setting where nothing is varied."""
        if not isinstance(self.vary, dict):
            return self.vary or ({},)
        settings: list[dict[str, Value]] = [{}]
        for name, values in self.vary.items():
            settings = [{**setting, name: value} for setting in settings for value in values]
        return tuple(settings)

    def pools(self, setting: Setting) -> Pools:
        """Return the experts of one setting: those of the study, but for the roles it names."""
        chosen = {
            name.removeprefix(EXPERTS): (str(value),)
            if isinstance(value, (bool, int, float, str))
            else tuple(value)
            for name, value in setting.items()
            if name.startswith(EXPERTS)
        }
        base = {"base": chosen["base"][0]} if "base" in chosen else {}
        return self.experts.model_copy(update={**chosen, **base})

    def fact(self, name: str, setting: Setting) -> float | None:
        """Return the mean of a fact over the experts of one setting.

        Args:
            name: ``experts.ROLE.FACT``.
            setting: one of `settings`.

        Returns:
            None where one of the experts lacks it.
        """
        role, _, fact = name.removeprefix(EXPERTS).partition(".")
        pools = self.pools(setting)
        names = pools.names(role)
        found = [self.experts.facts.get(each, {}).get(fact) for each in names]
        known = [value for value in found if value is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(found) else None
