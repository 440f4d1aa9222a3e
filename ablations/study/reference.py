"""Writes the page on study files from the schema. Knows what stands below each field.

python -m ablations.study.reference           write `ablations/studies/README.md` anew
python -m ablations.study.reference --check   exit with 1 if the page differs; write nothing
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ablations.engines.options import EngineOptions
from ablations.machine.whole_files import write_text
from ablations.scoring.protocol import GenKwargs
from ablations.study.experts import ExpertEntry, ExpertsFile
from ablations.study.files import STUDIES
from ablations.study.schema import Evaluate, Pools, PrimaryBlock, ReportBlock, Scalar, Study
from ablations.study.starts import read_start
from layerswap_method.errors import LayerSwapError

PAGE = STUDIES / "README.md"

BLOCKS: Mapping[str, type[BaseModel]] = {
    "A study file": Study,
    "`experts`": Pools,
    "`evaluate`": Evaluate,
    "`evaluate: gen_kwargs`": GenKwargs,
    "`evaluate: options`": EngineOptions,
    "`report`": ReportBlock,
    "`report: primary`": PrimaryBlock,
    "An experts file": ExpertsFile,
    "One expert of an experts file": ExpertEntry,
}
"""Heading -> the block that it describes."""

_WORDS = {
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "true or false",
    "Any": "text",
    "NoneType": "",
}
"""Python type -> what a user writes."""

_HEAD = """\
# Study files

<!-- Written by `python -m ablations.study.reference` from the schema: edit that. -->

A study file says which merges to make, which models to compare them with, and what to ask all of
them. `layerswap run STUDY` runs a study: a path, or the name of a study in this folder.

```console
$ layerswap init study study.yml       # a commented study to start from
$ layerswap run study.yml --dry-run    # what would be merged and asked; runs nothing
$ layerswap run study.yml              # writes runs/NAME; the same command continues a stopped run
$ layerswap report runs/NAME           # tables, figures and tests
```

All mistakes of a study are reported together, before anything runs, with the nearest valid name.

## A complete example

`layerswap init study` writes this file. It runs as it is on the experts of `layerswap pocket
build`, in their local folders. For your own experts, change the marked lines.

```yaml
{study}```

## Where paths start

A relative path in a study, recipe or experts file starts at the folder of that file. If nothing is
there, it starts at the working directory. The studies and experts files of this package use the
second way: `runs/pocket/base` is in the folder where you run the command. `layerswap run --dry-run`
prints the folder of every expert.

Relative `data_files` in a task's YAML start at the working directory, as in lm-eval. If nothing is
there, they start at the folder of the YAML file.

## A task of your own

`include_path` names a folder with lm-eval task files. `tasks/story_sw.yaml`, with its data in
`tasks/story_sw.jsonl` (one `{{"question": ..., "answer": ...}}` a line):

```yaml
task: story_sw
dataset_path: json
dataset_kwargs: {{data_files: {{test: story_sw.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}\\nJibu:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], do_sample: false, max_gen_toks: 32}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
```

In the study: `evaluate: {{include_path: tasks, tasks: [story_sw]}}`. A file or field that is not
there, and a filter that lm-eval does not know, end `layerswap run` and its `--dry-run` before a
model is asked.

## A recipe as it is

`recipe` also takes the path of a recipe that works with `mergekit-yaml`, such as the one that
`layerswap init recipe` writes. Then `experts` can be left out:

```yaml
name: from_recipe
question: Is the swap better than the average of both experts?
recipe: recipe.yml
baseline: [base, task_expert, language_expert, soup]
evaluate:
  include_path: runs/pocket/tasks
  tasks: [pocket_math_sw]
  limit: 100
```

If a recipe averages several experts of one role and a baseline needs one of them, say which:
`experts: {{task: ./math}}`. Benchmarks need the language of each expert:
`experts: {{language: {{sw: ./swahili}}}}`.

## The same study on other experts

An experts file gives the names in a study other places. `layerswap init experts` writes this one:

```yaml
{experts}```

## All keys
"""


def page() -> str:
    """Return the page."""
    parts = [_HEAD.format(study=read_start("study"), experts=read_start("experts"))]
    for heading, model in BLOCKS.items():
        rows = "\n".join(_row(name, field) for name, field in model.model_fields.items())
        text = inspect.cleandoc(model.__doc__ or "").replace("``", "`")
        parts.append(
            f"### {heading}\n\n{text}\n\n| key | write | meaning |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    forms = list(dict.fromkeys(each for each in _forms(field.annotation) if each))
    write = " or ".join(forms) + _default(field)
    meaning = " ".join((field.description or "").split()).replace("``", "`").replace("|", "\\|")
    return f"| `{name}` | {write} | {meaning} |"


def _default(field: FieldInfo) -> str:
    """Return the default as YAML has it; nothing where it is empty or another block."""
    if field.is_required():
        return " (required)"
    value = None if field.default_factory else field.default
    if value is None or isinstance(value, (tuple, BaseModel)) or value == "":
        return ""
    return f" (default `{json.dumps(value).strip(chr(34))}`)"


def _forms(kind: Any) -> Iterator[str]:
    """Yield what a user may write for a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _forms(inner[0])
    elif set(get_args(Scalar)) <= set(inner):
        yield "value"
        yield from (each for kind in inner for each in _forms(kind) if each.startswith("list"))
    elif origin in (Union, UnionType):
        for each in inner:
            yield from _forms(each)
    elif origin is Literal:
        yield ", ".join(f"`{each}`" for each in inner)
    elif origin is tuple:
        yield f"list of {_plural(' or '.join(dict.fromkeys(_forms(inner[0]))))}"
    elif origin is dict and inner[1] is Any:
        yield "block"
    elif origin is dict:
        yield f"name: {' or '.join(dict.fromkeys(_forms(inner[1])))}"
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield "block"
    else:
        yield _WORDS[getattr(kind, "__name__", "Any")]


def _plural(text: str) -> str:
    if text == "text":
        return "names"
    if text.startswith("name: "):
        return "settings"
    return text.replace("value", "values", 1)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page differs.")
def main(check: bool) -> None:
    """Write the page on study files."""
    text = page()
    if not check:
        write_text(PAGE, text)
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        raise LayerSwapError(
            f"{_shown()} differs from the schema: run python -m ablations.study.reference"
        )
    click.echo(f"{_shown()} says what the schema says")


def _shown() -> Path:
    return PAGE.relative_to(PAGE.parents[2])


if __name__ == "__main__":
    main()
