"""lm-eval tasks of generated items, as the testbeds write them: YAML files and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ablations.tasks.catalog import FunctionName


class _Dumper(yaml.SafeDumper):
    """Writes functions, too."""


_Dumper.add_representer(
    FunctionName, lambda dumper, name: dumper.represent_scalar("!function", str(name))
)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as one JSON object a line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def write_yaml(path: Path, header: str, content: Mapping[str, Any]) -> None:
    """Write a YAML file below a comment."""
    text = yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    path.write_text(f"# {header}.\n{text}", encoding="utf-8")


def task(name: str, files: Mapping[str, str], scoring: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task without examples in its prompts.

    `files` are absolute paths of ``train`` (solved examples) and ``test``, which lm-eval would else
    resolve against the working directory; `scoring` is lm-eval's keys, as of `generated`.
    """
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": dict(files)},
        "fewshot_split": "train",
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "{{prompt}}",
        **scoring,
        "metadata": {"version": 1.0},
    }


def generated(
    max_tokens: int, filters: Mapping[str, str], *metrics: str, until: str
) -> dict[str, Any]:
    """Return how a generated answer is made, filtered (name -> regular expression) and scored."""
    return {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "fewshot_config": {"sampler": "first_n", "doc_to_target": "{{solution}}"},
        "generation_kwargs": {"until": [until], "do_sample": False, "max_gen_toks": max_tokens},
        "filter_list": [
            {"name": name, "filter": [_last_match(pattern), {"function": "take_first"}]}
            for name, pattern in filters.items()
        ],
        "metric_list": [metric(name) for name in metrics],
    }


def _last_match(pattern: str) -> dict[str, Any]:
    return {"function": "regex", "regex_pattern": pattern, "group_select": -1}


def metric(name: str) -> dict[str, Any]:
    """Return a metric that is better when higher."""
    aggregation = "bleu" if name == "bleu" else "mean"
    return {"metric": name, "aggregation": aggregation, "higher_is_better": True}
