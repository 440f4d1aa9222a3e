"""The keys of a study file, with their types and meanings.

A study is a grid of merges, each to be evaluated: ``recipe × vary × experts`` plus ``baseline``
models of the same experts, all on the same tasks. `vary` can choose the experts, too.

The text below each field is what `ablations/studies/README.md` says of it; after a change run
``python -m tools.study_page``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ablations.engines.options import EngineOptions
from ablations.scoring.evaluation import EvaluationSettings, Listed
from ablations.tasks.catalog import as_code, nearest_language
from layerswap_method.errors import nearest_of
from layerswap_method.frozen import Described
from layerswap_method.recipe.references import is_there, map_texts

_Names = Annotated[tuple[StrictStr, ...], Field(min_length=1)]

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
"""One value of a varied parameter."""

Value = Scalar | _Names
"""One value of what is varied: of a parameter, or the name or names of experts."""

Number = StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
"""A measured fact of an expert."""

Setting = Mapping[str, Value]
"""The values that `vary` gives one cell: name -> value."""

EXPERTS = "experts."
"""Begins the names in `vary` that choose experts: ``experts.task``, ``experts.base``."""

MAX_SETTINGS = 10_000
"""Most settings of a study; a larger grid is a slip of the pen."""

ROLES = ("base", "task", "language")
"""Model names of a recipe that stand for the experts of a cell."""

BaselineKind = Literal["base", "task_expert", "language_expert", "soup", "weighted_soup", "ties"]
"""Kinds of models that a recipe is compared with."""

Kind = Literal["recipe", BaselineKind]
"""Kinds of cells."""

Table = Literal["pairs", "overview", "souping"]
"""Layouts of a report: the paper's Tables 1, 2, 5 and 6."""

Rival = Literal[BaselineKind, "better_expert", "first_setting"]
"""Models that a primary comparison compares the swap with."""

BASELINE_ROLES: Mapping[BaselineKind, tuple[str, ...]] = {
    "base": ("base",),
    "task_expert": ("task",),
    "language_expert": ("language",),
    "soup": ("task", "language"),
    "weighted_soup": ("task", "language", "base"),
    "ties": ("task", "language", "base"),
}
"""Roles of the experts that a baseline is made of."""


def _by_code(value: Any) -> Any:
    """Return a mapping by language with codes in place of names (``swahili`` is ``sw``)."""
    if not isinstance(value, Mapping):
        return value
    coded: dict[Any, Any] = {}
    for language, entry in value.items():
        code = as_code(language) if isinstance(language, str) else language
        if code == language and (hint := nearest_language(str(language))):
            raise ValueError(f"no language {language!r}{hint}")
        if code in coded:
            raise ValueError(f"{code} is named twice, once by its name; write it once")
        coded[code] = entry
    return coded


_ByCode = BeforeValidator(_by_code)


class Pools(Described):
    """The experts by role. Every task expert is paired with every language expert.

    An expert is a name of the experts file, or gives its own location: a path with a slash
    (``./math``), a hub id (``org/model``, ``org/model@revision``), or base+adapter. Tables have the
    end of such a path; `places` give another name. Without an experts file, a name is that of a
    folder.
    """

    base: StrictStr = "base"
    """The pretrained model from which the experts were fine-tuned. It gives config and tokenizer,
    and changes are measured from it."""

    task: Annotated[tuple[StrictStr, ...], Listed] = ()
    """The task expert, or a list of them. It may be left out if every setting of `vary` names its
    own. Where nothing is merged, NAME_1 and NAME_2 are two trainings of one model, NAME."""

    language: Annotated[
        tuple[StrictStr, ...] | dict[str, Annotated[_Names, Listed]], Listed, _ByCode
    ] = ()
    """The language expert, a list of them, or a list for each language by its code or English name,
    such as ``{sw: [swahili]}``. `benchmarks` and `languages` need the languages."""

    facts: dict[str, dict[str, Number]] = Field(default_factory=dict)
    """Numbers of an expert, such as ``{math: {learning_rate: 1.0e-5}}``; see `facts` of `report`.
    For an expert that has facts in the experts file, only those count."""

    places: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    """Where experts are, by the names that the study has for them, such as
    ``{lora: ./base+./spanish-lora}``. An experts file that has the name counts first."""

    @field_validator("base", "task", "language", mode="before")
    @classmethod
    def _have_names_only(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse places with a name, which stand in `places`."""
        by_code = value if info.field_name == "language" and isinstance(value, Mapping) else {}
        pools = {f"{code}: ": names for code, names in by_code.items()} or {"": value}
        for code, names in pools.items():
            for block in names if isinstance(names, list) else [names]:
                if isinstance(block, Mapping) and block:
                    listed = ", ".join(map(str, block))
                    form = f"{{{code}[{listed}]}}" if code else f"[{listed}]"
                    form = listed if info.field_name == "base" else form
                    places = ", ".join(f"{name}: {place}" for name, place in block.items())
                    raise ValueError(
                        f"{code}{dict(block)} has places, and names are wanted; write "
                        f"{info.field_name}: {form}, and next to it places: {{{places}}}"
                    )
        return value

    def languages(self) -> dict[str, str]:
        """Return expert name -> language code, for pools that are given by language."""
        if not isinstance(self.language, dict):
            return {}
        return {name: code for code, names in self.language.items() for name in names}

    def names(self, role: str) -> tuple[str, ...]:
        """Return the experts of ``base``, ``task`` or ``language``, in the order of the study."""
        if role == "language" and isinstance(self.language, dict):
            return tuple(name for names in self.language.values() for name in names)
        names: str | tuple[str, ...] = getattr(self, role)
        return (names,) if isinstance(names, str) else names


class Evaluate(EvaluationSettings):
    """The tasks of every model, and how the engine runs them."""

    languages: Annotated[dict[str, Annotated[_Names, Listed]], _ByCode] = Field(
        default_factory=dict
    )
    """Tasks for each language, by its code or English name. A model with a language expert gets
    the tasks of that expert's language; a model without one gets all of them."""

    benchmarks: Annotated[tuple[StrictStr, ...], Listed] = ()
    """Benchmarks of the paper (``mgsm``, ``belebele``, ``flores``, ``mbpp``, ``mmlu``). Their tasks
    are added to `languages`, for every language code of the language experts."""

    options: EngineOptions = EngineOptions()
    """Options of the engine; see below. The experts file sets what is left out here."""


def _check_pairs(value: Any) -> Any:
    if re.search("[a-z]", str(value)):
        raise ValueError(
            f"{value} has a name; write the numbers of two settings of vary, from 1, such as "
            "[[2, 1]]; the models of baseline go below against, such as against: [soup]"
        )
    return value


_Pairs = Annotated[tuple[tuple[StrictInt, StrictInt], ...], BeforeValidator(_check_pairs)]


class PrimaryBlock(Described):
    """The primary comparisons: corrected together; all others of the report are exploratory."""

    against: Annotated[tuple[Rival, ...], Listed] = ()
    """Models to compare the swap with: a baseline of the study, ``better_expert`` (the task and the
    language expert, both of which must be beaten), or ``first_setting`` (every setting of `vary`
    against the first one). Without it: soup and better expert if they are baselines of the study,
    else ``first_setting``, else every baseline."""

    tasks: Annotated[tuple[StrictStr, ...], Listed] = ()
    """On which tasks. Without it, the first task in the target language."""

    setting: dict[str, Value] | None = None
    """The setting of `vary` to compare with `against`. Without it, every setting."""

    parameters: Annotated[tuple[StrictStr, ...], Listed] = ()
    """For `first_setting`: only what differs in one of these parameters of `vary` is primary, such
    as ``[placement]``. Without it, every parameter that varies."""

    contrasts: Annotated[
        tuple[tuple[StrictInt, StrictInt], ...], BeforeValidator(_check_pairs)
    ] = ()
    """Pairs of settings of `vary` by their numbers, from 1, such as ``[[2, 1], [3, 2]]``: the first
    minus the second. The report's answer begins with them. With them `against` has no default."""

    @property
    def is_stated(self) -> bool:
        """Whether the study file names the comparisons: else they are those by default."""
        return bool(self.against or self.contrasts or self.parameters)


class ReportBlock(Described):
    """The content of the report."""

    primary: PrimaryBlock = PrimaryBlock()
    """The comparisons that answer the question."""

    tables: Annotated[tuple[Table, ...], Listed] = ()
    """Layouts of the paper's Tables 1 (``pairs``), 2 (``overview``) and 6 (``souping``), with the
    paper's numbers next to them. Other tables are always written."""

    margin: float = Field(default=2.0, gt=0)
    """Differences up to this, in points, count as not relevant."""

    metric: StrictStr | None = None
    """The lm-eval metric to show. Without it, the first one of each task."""

    examples: StrictInt = Field(default=2, ge=0, le=50)
    """Answers that the run folder and the report show with their prompts: for each task so many
    items on which models differ, and for each model so many right, wrong, cut-off and empty
    answers, or others of a task without right and wrong; 0 for none. Tasks that say
    ``publish: false`` have none."""

    facts: Annotated[tuple[StrictStr, ...], Listed] = ()
    """Facts of the experts that differ between models, such as ``experts.task.drift``. For each the
    report draws the scores over it; for several experts it takes the mean of their facts."""


class SearchBlock(Described):
    """What `layerswap search` chooses by, and what it reports."""

    report: StrictStr | None = None
    """The task whose score the search is about, such as ``layerswap_mgsm_sw``. Without it, the
    first one of `primary`, or of the study."""

    choose: StrictStr | None = None
    """The task that chooses; it may be a proxy, such as ``layerswap_mgsm_en``. Without it, the task
    that reports, with its items split in two."""

    floors: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Other task -> the most points that a setting may lose there against the better expert, such
    as ``{layerswap_flores_en-sw: 2}``. A setting that loses more comes after all that do not."""

    share: float | None = Field(default=None, gt=0, lt=1)
    """Part of the items that choose; the others report. Without it, a half. All items of a task
    that only chooses or only reports do so, unless another task with equally many items does the
    other: such tasks are taken to be parallel languages."""

    rounds: tuple[Annotated[StrictInt, Field(ge=1)], ...] = ()
    """Items of the task after each round, such as ``[50, 100, 200, 400]``; as many as there are end
    it. Without it, 50, doubled in each round, and at last all that choose."""

    seed: StrictInt = Field(default=0, ge=0)
    """Seed of the split and of the order of items."""

    @field_validator("rounds")
    @classmethod
    def _rounds_grow(cls, rounds: tuple[int, ...]) -> tuple[int, ...]:
        if list(rounds) != sorted({*rounds}):
            raise ValueError(f"{list(rounds)} must grow from round to round")
        return rounds


def _check_name(name: str) -> str:
    if re.fullmatch("[a-z0-9][a-z0-9_-]*", name) is None:
        plain = re.sub("[^a-z0-9_-]+", "_", name.lower()).strip("_-")
        raise ValueError(
            f"{name!r} names no folder; write lower-case letters, digits, _ and -"
            f"{f', such as {plain}' if plain else ''}"
        )
    return name


class Study(Described):
    """A study: merges and unmerged models of the same experts, all on the same tasks."""

    name: Annotated[StrictStr, AfterValidator(_check_name)]
    """Lower-case letters, digits, ``_`` and ``-``. The run folder is ``runs/NAME``."""

    question: StrictStr = Field(min_length=1)
    """The question that the study answers; the report begins with it."""

    source: StrictStr = ""
    """Where the question comes from, such as a section of a paper."""

    recipe: dict[str, Any] | None = None
    """A mergekit recipe. Its models are ``task``, ``language`` and ``base``, which stand for the
    experts of these roles, or names of experts, which are the same in all merges."""

    baseline: Annotated[tuple[BaselineKind, ...], Listed] = ()
    """Models to compare with: the unmerged ones, the average of both experts (``soup``), the
    average weighted by the inverse of each expert's change (``weighted_soup``), and TIES."""

    vary: (
        dict[str, Annotated[tuple[Value, ...], Field(min_length=1)]]
        | tuple[dict[str, Value], ...]
        | None
    ) = None
    """The settings of the merges: a list, such as ``- {bottom_layers: 1}``, or a
    grid, such as ``bottom_layers: [1, 2]``, of which all combinations are made. A name is a key of
    the recipe, one of its `parameters`, a path such as ``models.0.parameters.weight``, or a role:
    ``experts.task``, ``experts.language`` (an expert or a list of experts) or ``experts.base``.
    """

    reference_layers: int | None = Field(default=None, ge=1)
    """Depth for which layer counts and `revert_layers` are written, such as 32: they are scaled to
    the model. If rounding makes their sum too large, the count that was rounded up most loses a
    layer. Without it they are not scaled."""

    experts: Pools
    """The experts by role; see below."""

    experts_file: StrictStr | None = None
    """The experts file that is used without ``--experts``: its path from the folder of the study
    file, or the name of a shipped one, such as ``pocket``. Not needed if every expert gives its own
    location."""

    evaluate: Evaluate
    """The tasks of every model; see below."""

    report: ReportBlock = ReportBlock()
    """The content of the report; see below."""

    search: SearchBlock = SearchBlock()
    """What `layerswap search` chooses by and reports; see below."""

    @field_validator("experts", mode="before")
    @classmethod
    def _experts_are_a_block(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                f"is {value!r}, and must be a block with base, task and language; an experts file "
                f"is named by experts_file: {value}"
            )
        return value

    @model_validator(mode="after")
    def _names_once(self) -> Study:
        pools = {f"{EXPERTS}{role}": self.experts.names(role) for role in ROLES}
        for place, names in {**pools, "baseline": self.baseline}.items():
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{place} names {', '.join(twice)} twice; name it once")
        return self

    @model_validator(mode="after")
    def _vary_is_sound(self) -> Study:
        if isinstance(self.vary, dict):
            count = math.prod(map(len, self.vary.values()))
            if count > MAX_SETTINGS:
                raise ValueError(f"vary has {count:,} settings, and {MAX_SETTINGS:,} are the most")
        roles = [f"{EXPERTS}{role}" for role in ROLES]
        for name, value in ((n, v) for setting in self.settings() for n, v in setting.items()):
            why = None
            if name.startswith(EXPERTS) and name not in roles:
                raise ValueError(f"vary: unknown {name!r}{nearest_of(name, roles)}")
            if isinstance(value, tuple):
                why = "only experts can be a list of names" if name not in roles else None
                why = "a cell has one base" if name == f"{EXPERTS}base" else why
            elif name in roles and not isinstance(value, str):
                why = "write the name of an expert, or a list of names"
            elif isinstance(value, float) and not math.isfinite(value):
                why = "write a finite number"
            if why is not None:
                shown = list(value) if isinstance(value, tuple) else value
                raise ValueError(f"vary: {name} is {shown!r}; {why}")
        return self

    def settings(self) -> tuple[dict[str, Value], ...]:
        """Return every setting of `vary`, in order; one empty setting where nothing is varied."""
        if not isinstance(self.vary, dict):
            return self.vary or ({},)
        settings: list[dict[str, Value]] = [{}]
        for name, values in self.vary.items():
            settings = [{**setting, name: value} for setting in settings for value in values]
        return tuple(settings)

    def with_folders(self, place: Callable[[Path], Path]) -> Study:
        """Return the study with what `place` makes of its folders of tasks and data.

        A text of `metadata` is a place if it has a slash and something is there.
        """
        evaluate = self.evaluate

        def placed(text: str) -> str:
            path = place(Path(text)) if "/" in text else None
            return str(path) if path is not None and (is_there(text) or is_there(path)) else text

        update = {
            "include_path": tuple(map(place, evaluate.include_path)),
            "data_dir": evaluate.data_dir and place(evaluate.data_dir),
            "metadata": map_texts(evaluate.metadata, placed),
        }
        return self.model_copy(update={"evaluate": evaluate.model_copy(update=update)})

    def pools(self, setting: Setting) -> Pools:
        """Return the experts of one setting: those of the study, except the roles it names."""
        chosen: dict[str, Any] = {
            name.removeprefix(EXPERTS): value if isinstance(value, tuple) else (str(value),)
            for name, value in setting.items()
            if name.startswith(EXPERTS)
        }
        if "base" in chosen:
            (chosen["base"],) = chosen["base"]
        return self.experts.model_copy(update=chosen)

    def fact(self, name: str, setting: Setting) -> float | None:
        """Return the mean of ``experts.ROLE.FACT`` over a setting's experts, if all have it."""
        role, _, fact = name.removeprefix(EXPERTS).partition(".")
        names = self.pools(setting).names(role)
        values = [self.experts.facts.get(name, {}).get(fact) for name in names]
        stated = [value for value in values if value is not None]
        return math.fsum(stated) / len(stated) if stated and len(stated) == len(values) else None
