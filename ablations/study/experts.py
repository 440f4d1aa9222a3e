"""Where the experts of a study are on this machine, and what they need.

What the command line sets counts first, then the study, then the experts file, then the defaults.
Only the tasks and their folder are the other way round: they belong to the models, so the experts
file goes before the study.

A file that is only the mapping below ``experts:`` is taken for that mapping. A relative path is
taken from the folder of the file if it is there, and from the working directory otherwise.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, StrictStr, ValidationError, model_validator

from ablations.engines.options import EngineOptions
from ablations.study.files import STUDIES, find_shipped, near, own_folder
from ablations.study.schema import Number, Study
from ablations.train.folder import RECORD
from layerswap_method.errors import InputError, describe_error
from layerswap_method.frozen import Described
from layerswap_method.recipe.problems import problems
from layerswap_method.recipe.strict_yaml import read_yaml


class ExpertEntry(Described):
    """One expert of an experts file: its place as text, or a block with these keys."""

    path: StrictStr = Field(min_length=1)
    """A folder, a hub id (``org/model`` or ``org/model@revision``), or base+adapter of either."""

    facts: dict[StrictStr, Number] = Field(default_factory=dict)
    """Numbers of the expert, such as ``{learning_rate: 1.0e-5}``; see `facts` of `report`. What
    `layerswap train` measured (`relative_norm`, `drift`) is read from the expert's folder; facts
    written here win."""

    @model_validator(mode="before")
    @classmethod
    def _plain_path(cls, data: Any) -> Any:
        return data if isinstance(data, dict) else {"path": data}


class ExpertsFile(Described):
    """An experts file: where the experts of a study are on this machine."""

    experts: dict[StrictStr, ExpertEntry] = Field(min_length=1)
    """The place of each expert, by the name that the study uses, such as ``math: ./math``."""

    include_path: StrictStr | None = None
    """Folder with lm-eval task files, in place of the study's."""

    tasks: tuple[StrictStr, ...] | dict[StrictStr, StrictStr] = ()
    """Tasks in place of `evaluate.tasks` of the study. As ``{pocket_math_sw: layerswap_mgsm_sw}``
    it replaces single tasks, in the whole study."""

    limit: int | None = Field(default=None, ge=1)
    """Items per task, from the first, where the study does not say `evaluate.limit`."""

    options: EngineOptions = EngineOptions()
    """How the engine runs these models, where the study does not say it in `evaluate.options`. A
    `dtype` is also that of the merges, where the recipe has none."""

    def facts(self) -> dict[str, dict[str, int | float]]:
        """Return name -> facts, for experts that have some."""
        return {name: entry.facts for name, entry in self.experts.items() if entry.facts}


def find_experts_file(text: str) -> Path:
    """Return the experts file that `text` names: a path, or a shipped one such as ``pocket``."""
    return find_shipped(text, STUDIES / "experts", "experts")


def read_experts_file(path: Path) -> ExpertsFile:
    """Return the experts file at `path`; raises `InputError` with every problem of it."""
    document = read_yaml(path)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: names no expert; write NAME: FOLDER, a line for each expert")
    if not set(document) & set(ExpertsFile.model_fields):
        document = {"experts": document}
    try:
        file, folder = ExpertsFile.model_validate(document), own_folder(path)
    except ValidationError as error:
        found = problems(ExpertsFile, document, error)
        raise InputError.from_problems(str(path), found) from error
    experts = {
        name: entry.model_copy(update={"facts": {**_measured(entry, folder), **entry.facts}})
        for name, entry in file.experts.items()
    }
    include_path = near(file.include_path, folder)
    return file.model_copy(update={"include_path": include_path, "experts": experts})


def _measured(entry: ExpertEntry, folder: Path | None) -> dict[str, int | float]:
    record = Path(near(entry.path.rpartition("+")[2], folder) or "") / RECORD
    try:
        facts: dict[str, int | float] = json.loads(record.read_bytes()).get("facts", {})
    except OSError:
        return {}
    except (ValueError, AttributeError) as error:
        raise InputError(f"{record}: cannot be read: {describe_error(error)}") from error
    return facts


def with_experts_file(study: Study, file: ExpertsFile, settings: Collection[str] = ()) -> Study:
    """Return the study with the settings of the experts file.

    `settings` are the keys that the command line has set; they go before both.
    """

    def is_set(key: str) -> bool:
        return any(f"{key}.".startswith(f"{each}.") for each in settings)

    evaluate, report, changes = study.evaluate, study.report, dict[str, Any]()
    if file.include_path is not None and not is_set("evaluate.include_path"):
        changes["include_path"] = file.include_path
    if file.tasks and not is_set("evaluate.tasks"):
        changes["tasks"] = file.tasks
        if isinstance(by := file.tasks, dict):
            changes["tasks"] = _replaced(evaluate.tasks, by)
            primary = {"tasks": _replaced(report.primary.tasks, by)}
            own = {"primary": report.primary.model_copy(update=primary)}
            report = report.model_copy(update={**own, "tasks": _replaced(report.tasks, by)})
    if "limit" in file.model_fields_set and "limit" not in evaluate.model_fields_set:
        changes["limit"] = file.limit
    options = (each.options.model_dump(exclude_unset=True) for each in (evaluate, file))
    changes["options"] = EngineOptions(**ChainMap(*options))
    facts = {"facts": {**study.experts.facts, **file.facts()}}
    parts = {"evaluate": evaluate.model_copy(update=changes), "report": report}
    return study.model_copy(update={**parts, "experts": study.experts.model_copy(update=facts)})


def _replaced(tasks: Sequence[str], by: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(by.get(task, task) for task in tasks))
