"""Tasks that have changed since a run scored them: what is on this machine against the records."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ablations.requests.fingerprint import fingerprints_of
from ablations.runs.run import Run
from ablations.study.identity import record_key
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import resolve_from


def changed_tasks(run: Run, tasks: Collection[str] | None = None) -> Iterator[str]:
    """Yield the tasks whose files, data or scoring are not those of the records. Loads no task.

    Of `tasks`; None is all of the run.
    """
    study = run.study.with_folders(lambda path: resolve_from(path, run.path))
    evaluate, head = study.evaluate, run.head
    records = ((pair, cell) for cell in run.cells for pair in cell.record_keys.items())
    cells = {pair: cell for pair, cell in records if tasks is None or pair[0] in tasks}
    folders = [*evaluate.task_folders, *filter(None, [evaluate.data_dir])]
    if run.is_copy or not cells or not all(folder.is_dir() for folder in folders):
        return
    evaluate = evaluate.model_copy(update={"tasks": tuple(dict.fromkeys(t for t, _ in cells))})
    try:
        hashes = fingerprints_of(evaluate)
        changed = dict.fromkeys(
            task
            for (task, key), cell in cells.items()
            # `layerswap evaluate` may have had another folder of tasks in the call before.
            if hashes.has(task)
            and key != record_key(cell.weights_key, head.protocol, task, hashes, head.versions)
        )
    except InputError as error:
        yield f"Whether tasks have changed since this run cannot be said: {error.message}"
        return
    for task in changed:
        yield (
            f"{task}: its file, its data or its scoring has changed since this run. Run the study "
            "again: it scores the stored answers anew, and the model gets only new prompts."
        )
