"""Every error of the package says the same in another process."""

import importlib
import pickle
import pkgutil

import pytest

import ablations
import layerswap_method
from ablations.recipe_commands.recipe_merge import MergekitFailed
from layerswap_method.command_line import shown
from layerswap_method.errors import InputError, LayerSwapError


def all_kinds(kind=LayerSwapError):
    """Return every type below `kind` that the package defines, and itself."""
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in all_kinds(below))]


def import_what_has_errors():
    for package in (layerswap_method, ablations):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            spec = module.module_finder.find_spec(module.name)
            source = "" if module.ispkg else spec.loader.get_source(module.name)
            if any(f"({end})" in source for end in ("LayerSwapError", "InputError")):
                importlib.import_module(module.name)


EXAMPLES = [
    LayerSwapError("a"),
    InputError.from_problems("recipe", ["one", "two"]),
    MergekitFailed(3),
    shown(InputError.from_problems("recipe", ["one", "two"])),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    """One that makes its sentence of a number must not make it again of the sentence."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_every_kind_of_error_survives_pickling():
    import_what_has_errors()
    kinds = all_kinds()
    assert len(kinds) > 10
    for kind in kinds:
        error = kind.__new__(kind, "text")
        vars(error).update(message="text", reason=3)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, vars(again)) == (kind, ("text",), vars(error)), kind
