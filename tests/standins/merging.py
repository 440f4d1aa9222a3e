"""Recipes for the tests, and the ways to merge them: as a value, by files, by mergekit."""

from pathlib import Path

import yaml

from layerswap_method.merge import WriteOptions, merge_from_files
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import merge_models
from layerswap_method.mix_reader import MixReader
from layerswap_method.progress import no_bar
from layerswap_method.recipe.references import Model, find_model_files
from layerswap_method.tensors import Merge


def recipe(models, parameters=None, base=None, **top):
    """Return a `layer_swap` recipe of a model or several a role; the base is the task expert."""
    listed = [
        {"model": str(path), "parameters": {"role": role}}
        for role, paths in models.items()
        for path in ([paths] if isinstance(paths, (str, Path)) else paths)
    ]
    return {
        "merge_method": "layer_swap",
        "base_model": str(models["task"] if base is None else base),
        "models": listed,
        "parameters": dict(parameters or {}),
        **top,
    }


def revert_recipe(expert, base, parameters, **top):
    return {
        "merge_method": "delta_revert",
        "models": [{"model": str(expert)}],
        "base_model": str(base),
        "parameters": dict(parameters),
        **top,
    }


def linear_recipe(models, weights=(1.0, 1.0)):
    """Return mergekit's own weighted average; the base is the first model."""
    return {
        "merge_method": "linear",
        "base_model": str(models[0]),
        "models": [
            {"model": str(model), "parameters": {"weight": weight}}
            for model, weight in zip(models, weights, strict=True)
        ],
    }


def write_recipe(path, document):
    """Write a recipe, a dict or a text, and return its file."""
    text = document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


def roles(experts):
    return {"task": experts.task, "language": experts.language}


def merge(document, out, text=None, **options):
    """Merge as `mergekit-yaml` does, with another text if there is one, and return the folder."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    content = yaml.safe_dump(dict(document), sort_keys=False)
    run_merge(
        MergeConfiguration.model_validate(yaml.safe_load(content)),
        str(out),
        MergeOptions(**{"quiet": True, "copy_tokenizer": False, **options}),
        text or content,
    )
    return out


def by_mergekit(document, out, **options):
    """Merge in mergekit's own executor, with the plain kernel; return the output folder."""
    return merge(document, out, **{"allow_crimes": True, **options})


def merge_of(document):
    given = read_recipe(document)
    models = {name: find_model_files(name) for name in given.references}
    return merge_models(given, models)


def merge_of_folder(folder, adapter=None):
    """Return one checkpoint, with its adapter if there is one, as a merge."""
    return merge_of_one(Model(str(folder), Path(folder), adapter))


def tensors_of(given):
    """Return every tensor of a merge, or of a recipe's merge."""
    merged = given if isinstance(given, Merge) else merge_of(given)
    return {name: MixReader(mix).read() for name, mix in merged.tensors.items()}


def write(document, out, *, log=None, bar=no_bar, **options):
    """Merge from file to file into `out`; return the lines of the log."""
    text = yaml.safe_dump(dict(document), sort_keys=False)
    file = RecipeFile("recipe", text, document)
    lines, settings = [], WriteOptions(**options)
    reason = merge_from_files(
        file, str(out), find_model_files, log or lines.append, settings, bar=bar
    )
    assert reason is None
    return lines
