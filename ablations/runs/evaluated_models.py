"""What was evaluated here: the run folders in ``runs``, and those that have a model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ablations.drawing.text_table import list_table, wrapped
from ablations.machine.fingerprint import HASHES, FileHashes
from ablations.models.find import find_model
from ablations.runs.cell_of_model import key_of_merge
from ablations.runs.named_models import run_and_model
from ablations.runs.records import RUN_FILE, CellRecord, is_round
from ablations.runs.run import Run, load_run
from ablations.study.identity import Fingerprints, checkpoint_key
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.file_names import MERGED_RECIPE
from layerswap_method.methods.read import read_recipe, read_recipe_file
from layerswap_method.recipe.references import is_folder, is_hub_id

RUNS = Path("runs")
"""The folder, in the working directory, that commands write runs to."""

_DEPTHS = ("*", "*/*", "*/*/*")
"""Places of run folders in `RUNS`: those of studies and those of `layerswap evaluate`."""

_SHOWN = 3
"""Models and tasks of a run that the table names."""


class EvaluatedRun(NamedTuple):
    """A run folder as `layerswap runs` lists it."""

    folder: Path
    models: tuple[str, ...]
    """Names of its models with a score, in the order of the study."""

    tasks: tuple[str, ...]
    """Tasks that at least one of them has a score of."""

    created: str
    """Time at which its plan was first written, in UTC, ISO 8601."""

    cells: int
    """Cells of the study; one for `layerswap evaluate`."""

    unfinished: int
    """Those that lack a score."""


class EvaluatedRuns(NamedTuple):
    """The runs below a folder, the newest first."""

    runs: tuple[EvaluatedRun, ...]
    warnings: tuple[str, ...]
    """Folders that could not be read, with the reason."""

    def text(self, width: int | None) -> str:
        """Return each folder on a line, whole, above what it has, in lines of `width`.

        None gives a table with one line for every run.
        """
        rows = [
            (_listed(run.models), _listed(run.tasks), _when(run), str(run.folder))
            for run in self.runs
        ]
        if not rows:
            return "No run has a score yet: layerswap evaluate MODEL"
        if width is None:
            return list_table(("model", "tasks", "when (UTC)", "where"), rows)
        return "\n".join(
            f"{where}\n" + wrapped(f"{models}; {tasks}; {when}", width, first="  ", indent="  ")
            for models, tasks, when, where in rows
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _when(run: EvaluatedRun) -> str:
    when = run.created[:16].replace("T", " ")
    return f"{when}, {run.unfinished} of {run.cells} cells unfinished" if run.unfinished else when


def list_runs(folder: Path = RUNS) -> EvaluatedRuns:
    """Return the run folders in `folder`, at most three folders down, and what could not be read.

    Raises:
        InputError: where there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder, so nothing was evaluated here: layerswap evaluate MODEL"
        )
    runs, warnings = list[EvaluatedRun](), list[str]()
    for run in _loaded(folder, warnings):
        cells = {cell.label for cell in run.cells}
        names = [model.label for model in run.models if cells & {*model.cells}]
        tasks = dict.fromkeys(r.task for cell in run.cells for r in cell.task_records)
        runs.append(
            EvaluatedRun(
                folder=run.path,
                models=tuple(names),
                tasks=tuple(tasks),
                created=run.head.created,
                cells=len(run.head.cells),
                unfinished=len(run.unfinished),
            )
        )
    runs.sort(key=lambda run: run.created, reverse=True)
    return EvaluatedRuns(tuple(runs), tuple(warnings))


def places_of_models(names: Sequence[str]) -> list[str]:
    """Return names with each model in the place of a run that has its weights: ``RUN:MODEL``.

    A merge may also be the cell of a study that merges the same tensors. What is no model (a run
    folder, RUN:MODEL, an output of lm-eval) stays as it is. Where a model was evaluated several
    times, runs with the settings that most of the models have are taken, of these the ones with
    most tasks, then the newest.

    Raises:
        InputError: for a model that was evaluated in no run below `RUNS`.
    """
    fingerprints = Fingerprints(FileHashes(RUNS / "answers" / HASHES))
    keys = {name: key for name in names if (key := _weights_key(name, fingerprints)) is not None}
    if not keys:
        return [*names]
    loaded = _loaded(RUNS, []) if RUNS.is_dir() else []

    def with_weights(key: str | None) -> list[tuple[Run, CellRecord]]:
        return [(run, cell) for run in loaded for cell in run.cells if cell.weights_key == key]

    by_name = dict[str, list[tuple[Run, CellRecord]]]()
    for name, key in keys.items():
        cells = with_weights(key) or with_weights(_key_by_recipe(Path(name), fingerprints))
        if not cells:
            raise InputError(
                f"{name}: no run in {RUNS} has a score of these weights; evaluate it (layerswap "
                f"evaluate {name}), or name the run folder. layerswap runs lists what there is"
            )
        by_name[name] = cells

    def settings(run: Run) -> tuple[str, str]:
        return run.head.protocol, run.cells[0].backend

    shared = [settings(run) for cells in by_name.values() for run, _ in cells]
    common = {
        one: sum(any(settings(run) == one for run, _ in cells) for cells in by_name.values())
        for one in shared
    }
    places = {}
    for name, cells in by_name.items():
        run, cell = max(
            cells,
            key=lambda pair: (
                common[settings(pair[0])],
                len(pair[1].task_records),
                pair[0].head.created,
            ),
        )
        is_single = len(run.head.cells) == 1
        places[name] = str(run.path) if is_single else f"{run.path}:{cell.label}"
    return [places.get(name, name) for name in names]


def _loaded(folder: Path, warnings: list[str]) -> list[Run]:
    """Return the runs in a folder; a note is added to `warnings` for each that cannot be read.

    Rounds of a search are none: by their scores settings were chosen, so they are too high.
    """
    runs = list[Run]()
    for depth in _DEPTHS:
        for file in sorted(folder.glob(f"{depth}/{RUN_FILE}")):
            if is_round(file.parent):
                continue
            try:
                runs.append(load_run(file.parent))
            except LayerSwapError as error:
                warnings.append(first_line(error))
    return runs


def _key_by_recipe(folder: Path, fingerprints: Fingerprints) -> str | None:
    """Return the key that a merge has as a cell of a study, by the recipe that mergekit leaves."""
    file = folder / MERGED_RECIPE
    if not file.is_file():
        return None
    recipe = read_recipe(read_recipe_file(file).document)
    return key_of_merge(recipe, fingerprints)


def _weights_key(name: str, fingerprints: Fingerprints) -> str | None:
    """Return the key of a model's weights; None for what is no model on this machine."""
    folder, model_of_run = run_and_model(name)
    if model_of_run is not None and is_folder(folder):
        return None  # the folder of an adapter's run has a + in its name
    base = name.partition("+")[0]
    is_model = is_folder(name) and (Path(name) / "config.json").is_file()
    is_model = is_model or ("+" in name and not is_folder(name))
    if not is_model and (is_folder(name) or not is_hub_id(base) or ":" in name):
        return None
    try:
        expert = find_model(name, download=False)
    except InputError:
        if is_folder(base):
            raise
        return None
    return checkpoint_key(expert, fingerprints)
