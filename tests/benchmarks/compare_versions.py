"""What start, check and merge cost before and after a change: two checkouts, in turn.

    python tests/benchmarks/compare_versions.py BEFORE AFTER
        [--repeats 5] [--hidden 1024] [--work DIR] [--json FILE]

BEFORE and AFTER are checkouts of this project, each with its environment in .venv. Writes three
random bf16 Llamas of 16 layers and 128,256 words, whose tokenizer.json are of one vocabulary: the
"equal" files byte for byte, the "different" ones with other spaces, so that they must be parsed.
The checkouts take turns, so a busy machine hits both; a way's ratio is the median over turns of
after / before. The merges of both have to be equal byte for byte.
Absolute figures mean nothing outside this machine, ratios do.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_loading import write_llama
from tests.benchmarks.bench_merge import digests, measured, shape_of

MODELS = ("base", "task", "language")
FIGURES = ("cpu_s", "wall_s", "peak_bytes")
WORDS, LAYERS = 128_256, 16


def prepare(work, hidden):
    """Write the models and a recipe for each kind of tokenizers; return kind -> recipe file."""
    shape = shape_of(WORDS, hidden, 11 * hidden // 4, LAYERS, hidden // 64)
    files = {}
    for kind in ("equal", "different"):
        for seed, name in enumerate(MODELS):
            folder = work / kind / name
            if kind == "equal":
                write_llama(folder, shape, 10 * seed)
                continue
            shutil.copytree(work / "equal" / name, folder, copy_function=os.link)
            tokenizer = folder / "tokenizer.json"
            document = json.loads(tokenizer.read_text(encoding="utf-8"))
            tokenizer.unlink()  # it is a link: the equal one stays
            tokenizer.write_text(json.dumps(document, indent=seed), encoding="utf-8")
        base, *experts = (str(work / kind / name) for name in MODELS)
        named = zip(experts, MODELS[1:], strict=True)
        recipe = {
            "merge_method": "layer_swap",
            "models": [{"model": model, "parameters": {"role": role}} for model, role in named],
            "base_model": base,
            "parameters": {"bottom_layers": 4, "top_layers": 2},
        }
        files[kind] = work / kind / "recipe.yml"
        files[kind].write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return files


def commands(files, out):
    """Return way -> arguments of `layerswap`."""
    ways = {"start": ["--help"]}
    for kind, file in files.items():
        ways[f"check, {kind} tokenizers"] = ["check", str(file)]
        ways[f"merge, {kind} tokenizers"] = ["merge", str(file), str(out)]
    return ways


def measure(work, checkouts, repeats, hidden):
    """Return way -> figures of both checkouts and their ratio."""
    out, costs, merges = work / "out", {}, {}
    ways = commands(prepare(work, hidden), out)
    for turn in range(repeats + 1):  # the first one warms caches up and is not counted
        for way, arguments in ways.items():
            for version, checkout in checkouts.items():
                shutil.rmtree(out, ignore_errors=True)
                cost = measured([str(checkout / ".venv/bin/layerswap"), *arguments], out)
                click.echo(f"turn {turn} {version} {way}: {cost}", err=True)
                if turn > 0:
                    costs.setdefault(way, {}).setdefault(version, []).append(cost)
                elif way.startswith("merge"):
                    merges.setdefault(way, {})[version] = digests(out)
    for way, made in merges.items():
        if made["before"] != made["after"]:
            raise SystemExit(f"{way}: the checkouts do not make the same tensors")
    return {way: summary(found) for way, found in costs.items()}


def summary(found):
    """Return the medians of both versions, and of the ratios of the turns."""
    shown = {v: {f: median(c[f] for c in all_) for f in FIGURES} for v, all_ in found.items()}
    pairs = list(zip(found["before"], found["after"], strict=True))
    ratios = {figure: median(b[figure] / a[figure] for a, b in pairs) for figure in FIGURES}
    return {**shown, "after / before": ratios}


def table(figures):
    """Return the figures as a table."""
    lines = ["| way | CPU s | | ratio | wall s | | ratio | peak MiB | | ratio |", "|---" * 10 + "|"]
    for way, found in figures["ways"].items():
        cells = [way]
        for figure in FIGURES:
            unit = 2**20 if figure == "peak_bytes" else 1
            for version in ("before", "after"):
                cells.append(f"{found[version][figure] / unit:.{0 if unit > 1 else 1}f}")
            cells.append(f"{found['after / before'][figure]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command()
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@click.option("--repeats", default=5, show_default=True)
@click.option("--hidden", default=1024, show_default=True, help="Width of the models.")
@click.option("--work", type=click.Path(path_type=Path), help="A new folder for the models.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(before, after, repeats, hidden, work, json_file):
    """Measure and print the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    checkouts = {"before": before.resolve(), "after": after.resolve()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (work or Path(scratch) / "models").resolve()
        folder.mkdir(parents=True)
        ways = measure(folder, checkouts, repeats, hidden)
        weights = (folder / "equal" / "task").glob("*.safetensors")
        nbytes = sum(file.stat().st_size for file in weights)
    figures = {"model_bytes": nbytes, "repeats": repeats, "cores": os.cpu_count(), "ways": ways}
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    click.echo(table(figures))


if __name__ == "__main__":
    main()
