"""Where the experts of a study are. Knows the experts file, folders and hub ids; not their layers.

An experts file says for one machine what a study leaves open::

    experts:
      base: runs/pocket/base              # a folder, from the working directory
      math: org/some-model                # a hub id, or org/some-model@revision
      swahili: org/base+path/to/adapter   # a base and a LoRA adapter
    include_path: runs/pocket/tasks       # optional: lm-eval task files
    tasks: [pocket_math_sw]               # optional: in place of the study's tasks

A file that is only the mapping below ``experts:`` is taken for that mapping.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, StrictStr, ValidationError

from ablations.study.forms import form_problems
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.strict_yaml import read_yaml


class ExpertsFile(Frozen):
    """What an experts file says."""

    experts: dict[StrictStr, Any] = Field(min_length=1)
    """Name -> reference."""

    include_path: StrictStr | None = None
    """Folder of lm-eval task files, from the working directory; goes before the study's."""

    tasks: tuple[StrictStr, ...] = ()
    """Tasks in place of `evaluate.tasks` of the study."""


def read_experts_file(path: Path) -> ExpertsFile:
    """Return the experts file at `path`.

    Raises:
        InputError: when it cannot be read, with every problem.
    """
    document = read_yaml(path)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: names no expert; write NAME: FOLDER, a line for each expert")
    if not set(document) & set(ExpertsFile.model_fields):
        document = {"experts": document}
    try:
        return ExpertsFile.model_validate(document)
    except ValidationError as error:
        problems = form_problems(ExpertsFile, document, error, "the experts file")
        raise InputError.from_problems(str(path), problems) from error
