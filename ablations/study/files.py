"""Study files, with what the command line sets in them, and experts files: read and joined.

Every fault of form comes at once. A relative path is taken from the folder of its file if it is
there, and from the working directory otherwise.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from ablations.engines.options import MEMORY_OPTIONS, EngineOptions
from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.overrides import with_settings
from ablations.scoring.evaluation import Folders, Listed
from ablations.study.schema import Number, Study
from ablations.train.folder import RECORD
from layerswap_method.errors import InputError, describe_error, nearest
from layerswap_method.frozen import Described
from layerswap_method.recipe.kinds import document_kind, place_kind
from layerswap_method.recipe.references import is_there, resolve_from, working_folder
from layerswap_method.recipe.strict_yaml import plain_document, read_yaml
from layerswap_method.recipe.validation import validation_texts

STUDIES = Path(__file__).parent.parent / "studies"
"""The shipped studies."""

_SAME_SCORES = ("data_dir", "report", "question", "source", "name", *MEMORY_OPTIONS)
"""Keys that leave the score of a task as it is, or whose change of it stands in the record."""

_LONGEST = 40
"""Characters of a setting in the name of a folder; longer ones are hashed."""


@dataclass(frozen=True)
class StudyFile:
    """A study and the file it was read from."""

    path: Path
    """Of a study that a program wrote, ``study`` in the working directory."""

    study: Study
    settings: tuple[str, ...] = ()
    """Keys that the command line has set; they count before the experts file's."""

    @property
    def experts_file(self) -> Path | None:
        """The experts file that the study names: from its folder, or a shipped one by its name."""
        if (name := self.study.experts_file) is None:
            return None
        file, shipped = self.path.parent / name, STUDIES / "experts" / f"{name}.yml"
        return shipped if shipped.is_file() and not is_there(file) else file


class ExpertsFileEntry(Described):
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

    experts: dict[StrictStr, ExpertsFileEntry] = Field(min_length=1)
    """The place of each expert, by the name that the study uses, such as ``math: ./math``."""

    include_path: Folders = ()
    """Folder with lm-eval task files, or a list of them, in place of the study's."""

    tasks: Annotated[tuple[StrictStr, ...] | dict[StrictStr, StrictStr], Listed] = ()
    """Tasks in place of `evaluate.tasks` of the study. As ``{pocket_math_sw: layerswap_mgsm_sw}``
    it replaces single tasks, in the whole study."""

    limit: StrictInt | None = Field(default=None, ge=1)
    """Items per task, from the first, where the study does not say `evaluate.limit`."""

    options: EngineOptions = EngineOptions()
    """Options of the engine for these models, where the study does not say them in
    `evaluate.options`. Their `dtype` is also the dtype of merges whose recipe has none."""

    def facts(self) -> dict[str, dict[str, int | float]]:
        """Return name -> facts, for experts that have some."""
        return {name: entry.facts for name, entry in self.experts.items() if entry.facts}


def find_file(text: str, kind: Literal["study", "experts"]) -> Path:
    """Return the file of a path or of a shipped name, or raise `InputError`."""
    path, folder = Path(text), STUDIES if kind == "study" else STUDIES / "experts"
    shipped = {file.stem: file for file in sorted(folder.glob("*.yml"))}
    with contextlib.suppress(OSError):  # a name too long for a file
        if path.is_file():
            return path
        if path.is_dir() and text not in shipped:
            what = place_kind(path) or f"; name the {kind} file in it"
            raise InputError(f"{path}: is a folder{what}")
    if text in shipped:
        return shipped[text]
    guess = nearest(path.stem, shipped)
    raise InputError(
        f"{text}: no such {kind} file (the current directory is {working_folder() or 'gone'}), and "
        f"no shipped one has that name{guess}{'' if guess else '.'} "
        f"Shipped are {', '.join(shipped)}"
    )


def open_study_file(
    study: str | Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> StudyFile:
    """Return a study by its path or its shipped name, or what a program wrote in its place.

    That is a mapping with the keys of the file, whose paths start at the working directory. Raises
    `InputError` as `find_file` and `read_study` do.
    """
    if isinstance(study, Mapping):
        return _study_file(Path("study"), plain_document(study, "study"), settings)
    return read_study(find_file(study, "study"), settings)


def read_study(path: Path, settings: Mapping[str, Any] | None = None) -> StudyFile:
    """Return the study in a file, as if `settings` of the command line stood in it.

    Those are key, such as ``evaluate.limit`` -> value.

    Raises:
        InputError: with every problem of form, or when the file cannot be read as YAML at all.
    """
    return _study_file(path, read_yaml(path), settings)


def _study_file(path: Path, document: Any, settings: Mapping[str, Any] | None) -> StudyFile:
    settings, listed = settings or {}, list[str]()
    keys = Study.model_fields.keys() - {"experts"}
    if not isinstance(document, dict) or not document.keys() & keys:
        form = (
            "; a study has name:, question:, experts: ... (layerswap init study writes one to "
            "start from)"
        )
        raise InputError(f"{path}: is not a study{document_kind(document) or form}")
    document = with_settings(document, settings)
    try:
        study = Study.model_validate(document)
    except ValidationError as error:
        set_here = tuple(f"{key}{end}" for key in settings for end in (":", " "))
        for problem in validation_texts(Study, document, error):
            listed.append(f"--set {problem}" if problem.startswith(set_here) else problem)
    InputError.raise_any(str(path), listed)
    folder = own_folder(path)
    study = study.with_folders(lambda place: resolve_from(place, folder))
    return StudyFile(path, study, tuple(settings))


def read_experts_file(path: Path) -> ExpertsFile:
    """Return the experts file at `path`, which may be the mapping below ``experts:`` alone.

    Raises:
        InputError: with every problem of it.
    """
    document = read_yaml(path)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: names no expert; write NAME: FOLDER, a line for each expert")
    if what := document_kind(document):
        raise InputError(f"{path}: is not an experts file{what}")
    if not set(document) & set(ExpertsFile.model_fields):
        document = {"experts": document}
    try:
        file, folder = ExpertsFile.model_validate(document), own_folder(path)
    except ValidationError as error:
        listed = validation_texts(ExpertsFile, document, error)
        raise InputError.from_problems(str(path), listed) from error
    experts = {
        name: entry.model_copy(update={"facts": {**_measured(entry, folder), **entry.facts}})
        for name, entry in file.experts.items()
    }
    include_path = tuple(resolve_from(place, folder) for place in file.include_path)
    return file.model_copy(update={"include_path": include_path, "experts": experts})


def _measured(entry: ExpertsFileEntry, folder: Path | None) -> dict[str, int | float]:
    record = resolve_from(entry.path.rpartition("+")[2], folder) / RECORD
    try:
        facts: dict[str, int | float] = json.loads(record.read_bytes()).get("facts", {})
    except OSError:
        return {}
    except (ValueError, AttributeError) as error:
        raise InputError(f"{record}: cannot be read: {describe_error(error)}") from error
    return facts


def with_experts_file(study: Study, file: ExpertsFile, settings: Collection[str] = ()) -> Study:
    """Return the study with the settings of the experts file.

    What the command line sets (`settings` are those keys) counts first, then the study, then the
    experts file. Only tasks and their folder are the other way round: they belong to the models.
    """

    def is_set(key: str) -> bool:
        return any(f"{key}.".startswith(f"{setting}.") for setting in settings)

    evaluate, report, search = study.evaluate, study.report, study.search
    changes = dict[str, Any]()
    if file.include_path and not is_set("evaluate.include_path"):
        changes["include_path"] = file.include_path
    if file.tasks and not is_set("evaluate.tasks"):
        changes["tasks"] = file.tasks
        dropped = {*evaluate.tasks} - {*file.tasks}
        primary = tuple(task for task in report.primary.tasks if task not in dropped)
        if isinstance(by := file.tasks, dict):
            changes["tasks"] = _replaced(evaluate.tasks, by)
            if not is_set("evaluate.languages"):
                changes["languages"] = {c: _replaced(t, by) for c, t in evaluate.languages.items()}
            primary = _replaced(report.primary.tasks, by)
            search = search.model_copy(
                update={
                    "report": search.report and by.get(search.report, search.report),
                    "choose": search.choose and by.get(search.choose, search.choose),
                    "floors": {by.get(task, task): most for task, most in search.floors.items()},
                }
            )
        comparisons = report.primary.model_copy(update={"tasks": primary})
        report = report.model_copy(update={"primary": comparisons})
    if "limit" in file.model_fields_set and "limit" not in evaluate.model_fields_set:
        changes["limit"] = file.limit
    options = (block.options.model_dump(exclude_unset=True) for block in (evaluate, file))
    changes["options"] = EngineOptions(**ChainMap(*options))
    facts = {"facts": {**study.experts.facts, **file.facts()}}
    parts = {"evaluate": evaluate.model_copy(update=changes), "report": report, "search": search}
    return study.model_copy(update={**parts, "experts": study.experts.model_copy(update=facts)})


def _replaced(tasks: Sequence[str], by: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(by.get(task, task) for task in tasks))


def own_folder(file: Path) -> Path | None:
    """Return the folder at which the paths in a file start; see `resolve_from`.

    None for shipped files, whose paths start at the working directory.
    """
    return None if file.resolve().parent.is_relative_to(STUDIES) else file.parent


def folder_words(settings: Mapping[str, Any]) -> list[str]:
    """Return a word a setting for the name of a run folder, such as ``limit-50``.

    So a quick run with a small limit does not take the place of the whole one. Settings that
    change no score, such as how much memory an engine may use, add no word.
    """
    words = []
    for key, value in settings.items():
        name = re.sub(r"^((evaluate|experts)\.)?(options\.)?", "", key)
        if not {key.partition(".")[0], name} & set(_SAME_SCORES):
            text = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{name}-{value}").strip("-")
            hashed = f"{name}-{fingerprint_of(value=value)[:8]}".replace("_", "-")
            is_told = len(text) <= _LONGEST and str(value).isascii()  # others would lose letters
            words.append(text if is_told else hashed)
    return words
