"""Write the reference of study files: every key, from the schema.

python -m tools.study_page           write `ablations/studies/README.md` anew
python -m tools.study_page --check   exit with 1 if the page differs; write nothing
"""

from __future__ import annotations

import json
import re
from typing import Any

import click

from ablations.study.files import STUDIES, ExpertsFile
from ablations.study.schema import Study
from layerswap_method.command_line import shown_errors
from tools.write_or_check import write_or_check

PAGE = STUDIES / "README.md"
_HEAD = """# Keys of a study

<!-- Written by `python -m tools.study_page` from the schema: edit that. -->

What a study is, an example and your own tasks: [studies](../../docs/studies.md). The files in this
folder are the studies that ship; `experts/` holds the experts files.
"""
_BLOCKS = {
    "Study": "A study file",
    "Pools": "`experts`",
    "Evaluate": "`evaluate`",
    "GenKwargs": "`evaluate: gen_kwargs`",
    "EngineOptions": "`evaluate: options`",
    "ReportBlock": "`report`",
    "PrimaryBlock": "`report: primary`",
    "SearchBlock": "`search`",
    "ExpertsFile": "An experts file",
    "ExpertsFileEntry": "One expert of an experts file",
}
"""Type -> heading of its table."""
_WORDS = {"string": "text", "boolean": "true or false", "integer": "number", "number": "number"}
_SCALAR = {"boolean", "integer", "number", "string"}


def page() -> str:
    """Return the page."""
    schemas: dict[str, Any] = {}
    for model in (Study, ExpertsFile):
        schema = model.model_json_schema()
        schemas |= {**schema.pop("$defs"), model.__name__: schema}
    return "\n".join([_HEAD, *(_table(head, schemas[name]) for name, head in _BLOCKS.items())])


def _table(heading: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [_row(name, key, name in required) for name, key in schema["properties"].items()]
    text = schema["description"].replace("``", "`")
    head = "| key | write | meaning |\n|---|---|---|"
    return f"## {heading}\n\n{text}\n\n{head}\n" + "\n".join(rows) + "\n"


def _row(name: str, key: dict[str, Any], required: bool) -> str:
    default = key.get("default")
    shown = " (required)" if required else ""
    if default is not None and default != "" and not isinstance(default, (list, dict)):
        shown = f" (default `{json.dumps(default).strip(chr(34))}`)"
    meaning = " ".join(key["description"].split()).replace("``", "`").replace("|", "\\|")
    return f"| `{name}` | {_form(key)}{shown} | {meaning} |"


def _form(key: dict[str, Any]) -> str:
    """Return what a user writes for a key."""
    kinds = key.get("anyOf", [key])
    if {kind.get("type") for kind in kinds} >= _SCALAR:
        lists = [kind for kind in kinds if kind.get("type") == "array"]
        return " or ".join(["value", *map(_form, lists)])
    if len(kinds) > 1:
        return " or ".join(dict.fromkeys(_form(k) for k in kinds if k.get("type") != "null"))
    if "enum" in key or "const" in key:
        return ", ".join(f"`{value}`" for value in key.get("enum", [key.get("const")]))
    if key.get("type") == "array":
        items = key.get("items") or {"anyOf": key["prefixItems"]}
        return f"list of {_plural(_form(items))}"
    named = key.get("additionalProperties")
    if key.get("type") == "object" and isinstance(named, dict):
        return f"name: {_form(named)}"
    if "$ref" in key or key.get("type") == "object":
        return "block"
    return _WORDS[key.get("type", "string")]


def _plural(text: str) -> str:
    if text == "text":
        return "names"
    if text.startswith("name: "):
        return "settings"
    return re.sub(r"\b(list|number|value)\b", r"\1s", text)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page differs.")
@shown_errors()
def main(check: bool) -> None:
    """Write the page on study files."""
    write_or_check(PAGE, page(), "study_page", check=check)
    click.echo(f"{PAGE}: as the schema")


if __name__ == "__main__":
    main()
