import shutil

import pytest

from ablations.engines.task_loading import check_data
from ablations.study.cells import missing_tasks
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from layerswap_method.errors import LayerSwapError
from tests.standins.fine_tunes import tune
from tests.standins.oracle import layer_number
from tests.standins.studies import study_document, write_expert, write_tasks, write_yaml


def write_experts(path, folder, names, tasks, **more):
    """Write an experts file of the models in a folder."""
    places = {name: str(folder / name) for name in names}
    return write_yaml(path, {"experts": places, "include_path": str(tasks), **more})


def count_models(plan):
    return len({cell.weights_key for cell in plan.cells})


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return a folder with base, two task and two language experts of 4 layers. Read only."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("base", "math", "math_2", "swahili", "telugu")):
        write_expert(folder / name, seed)
    write_tasks(folder / "tasks", ["words", "words_sw", "words_te"])
    return folder


@pytest.fixture
def experts(models, tmp_path):
    """Return an experts file."""
    names = ("base", "math", "math_2", "swahili", "telugu")
    return write_experts(tmp_path / "experts.yml", models, names, models / "tasks")


@pytest.fixture
def own(models, tmp_path):
    """Return an experts file of copies beside it, which may be changed."""
    for name in ("base", "math", "swahili"):
        shutil.copytree(models / name, tmp_path / name)
    names = ("base", "math", "swahili")
    return write_experts(tmp_path / "own.yml", tmp_path, names, models / "tasks")


@pytest.fixture
def plan(tmp_path, experts):
    """Return a function that plans a study: a small one, but for the keys that it is given."""

    def call(
        given=experts,
        settings=None,
        /,
        *,
        path=tmp_path / "study.yml",
        how=(),
        reads=False,
        **changes,
    ):
        document = study_document(**changes)
        write_yaml(path, {key: value for key, value in document.items() if value is not None})
        found = plan_study(read_study(path, settings), given, **{"backend": "hf", **dict(how)})
        if reads:
            keys = [key for cell in found.cells for key in cell.record_keys.values()]
            check_data(missing_tasks(found.cells, keys).values())
        return found

    return call


@pytest.fixture
def problem(plan):
    """Return a function that plans a study that is wrong, and returns the message."""

    def call(*given, **changes):
        with pytest.raises(LayerSwapError) as caught:
            plan(*given, **changes)
        return caught.value.message

    return call


@pytest.fixture(scope="session")
def tuned(tmp_path_factory):
    """Return a folder with a base, fine-tunes of it that moved other layers, and tasks."""
    folder = tmp_path_factory.mktemp("tuned")
    base = write_expert(folder / "base", 0)
    for seed, (name, far) in enumerate({"math": (1, 2), "swahili": (0, 3), "telugu": (3,)}.items()):
        # Far from the base: small changes change no answer of a random model.
        tune(base, folder / name, seed, lambda n, far=far: 0.15 if layer_number(n) in far else 0.05)
    write_tasks(folder / "tasks", ["words"])
    names = ("base", "math", "swahili", "telugu")
    write_experts(folder / "experts.yml", folder, names, folder / "tasks")
    return folder
