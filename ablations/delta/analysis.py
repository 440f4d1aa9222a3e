"""`layerswap delta`: from references to files. Knows the steps and their order; no arithmetic.

Everything is read and computed before anything is written, and every file appears whole.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.delta.compare import Comparison, compare
from ablations.delta.figures import KINDS, comparison, heatmap
from ablations.delta.grids import rank_correlation
from ablations.delta.measure import QUANTILE, profile_of, read_changes
from ablations.delta.parameters import in_order, places_of
from ablations.delta.profile import DeltaProfile
from ablations.drawing.canvas import HINT, can_draw
from ablations.drawing.grid import Grid
from ablations.machine.names import slug
from ablations.machine.progress import Step, tell
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from ablations.models.find import find_model
from ablations.paper.published import published_grid
from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError

GRID_LIMIT = 0.7
"""Share of an expert's changed weights on the rounding grid from which its delta is doubtful.

Simulated on weights N(0, 0.02): a bf16 expert has 0.71 where the correlation of the stored delta
with the true one is 0.92 (mean change 6e-5), 0.79 where it is 0.51 (1e-5), 0.45 where it is 0.99.
"""


@dataclass(frozen=True)
class Analysis:
    """What was found of some experts of one base."""

    labels: tuple[str, ...]
    """Short names of the experts, each once."""

    profiles: tuple[DeltaProfile, ...]
    """One an expert."""

    comparison: Comparison | None
    """None for one expert."""


def delta(
    experts: Sequence[str],
    base: str | None,
    *,
    out: Path,
    threshold: float | None = None,
    quantile: float | None = None,
    reference: str | None = None,
) -> Iterator[str]:
    """Analyse, write files and yield what to tell; a warning starts with ``Warning:``.

    Args:
        experts: folders, hub ids or ``base+adapter``; none draws the `reference` alone.
        base: folder or hub id of their shared pretrained parent.
        out: folder for the files; several experts get one each in it.
        threshold: MAV that rows are counted above; None finds one for each expert.
        quantile: share of the rows of the layers' matrices above the threshold that is found;
            None for `QUANTILE`. Not both it and `threshold`.
        reference: a published expert to draw beside.

    Raises:
        InputError: for what is wrong with a reference, the checkpoints or the pair of them;
            nothing is written then.
    """
    published = None if reference is None else published_grid(reference)
    check_place(out / "delta.json")
    if not experts:
        if published is None:
            raise InputError("give an EXPERT and its --base, or a published one with --reference")
        given = {"--base": base, "--threshold": threshold, "--quantile": quantile}
        idle = [name for name, value in given.items() if value is not None]
        if idle:
            raise InputError(
                f"{' and '.join(idle)} without an EXPERT: add the expert to draw beside "
                f"{reference!r}, or give --reference alone"
            )
        with told_if_unwritable(out):
            yield from map(str, heatmap([published], out / f"reference-{slug(published.title)}"))
        return
    if base is None:
        raise InputError("the change is measured from a base: give the base model with --base")
    if threshold is not None and quantile is not None:
        raise InputError("give --quantile or --threshold, not both")
    if quantile is None:
        quantile = QUANTILE
    found = analyse(experts, base, threshold=threshold, quantile=quantile)
    if published is not None:
        for profile in found.profiles:
            rank_correlation(profile.grid(), published)  # fails before anything is written
    for label, profile in zip(found.labels, found.profiles, strict=True):
        yield from tell_profile(label, profile)
    if found.comparison is not None:
        yield from tell_comparison(found.comparison)
    tell(Step("drawing figures"))
    with told_if_unwritable(out):
        before = _files_in(found, out)
        yield from write(found, out, published)
    for path, number in _files_in(found, out).items():
        if before.get(path) == number:
            yield f"Warning: {path} is left from an earlier analysis"


def analyse(
    experts: Sequence[str],
    base: str,
    *,
    threshold: float | None = None,
    quantile: float = QUANTILE,
) -> Analysis:
    """Return the profiles of experts, read in one pass; writes nothing.

    Raises:
        InputError: as `delta`.
    """
    labels = label_all(experts)
    parent = find_model(base, name=Path(base).name)
    pairs = [
        open_pair(find_model(given, name=label), parent)
        for label, given in zip(labels, experts, strict=True)
    ]
    first = pairs[0]
    shared = [name for name in first.names if all(name in pair.names for pair in pairs)]
    places = places_of(shared)
    layers = [layer for layer, _ in places.values() if layer is not None]
    num_layers = max(layers, default=-1) + 1 if first.num_layers is None else first.num_layers
    inside = [name for name in shared if places[name][0] is not None]
    matrices = in_order(places[name][1] for name in inside if first.axis(name) is not None)
    vectors = tuple(dict.fromkeys(places[n][1] for n in inside if first.axis(n) is None))
    changes = read_changes(pairs, shared)
    profiles = tuple(
        profile_of(change, matrices, vectors, num_layers, threshold=threshold, quantile=quantile)
        for change in changes
    )
    several = compare(changes, labels, num_layers) if len(changes) > 1 else None
    return Analysis(tuple(labels), profiles, several)


def label_all(experts: Sequence[str]) -> list[str]:
    """Return a short name for each reference: the last part of its path, longer where two agree.

    Raises:
        InputError: for one expert named twice.
    """
    bare = [given.rstrip("/") for given in experts]
    for number, given in enumerate(bare):
        if given in bare[:number]:
            raise InputError(f"{given} is named twice")
    parts = [given.partition("+")[2] or given for given in bare]
    for depth in range(1, 1 + max(part.count("/") + 1 for part in parts)):
        labels = ["/".join(part.split("/")[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return list(experts)


def tell_profile(label: str, profile: DeltaProfile) -> Iterator[str]:
    """Yield what a user should know of an expert before looking at a figure."""
    above = [t for t in profile.tensors if t.layer is not None and t.is_matrix]
    rows = sum(tensor.rows for tensor in above)
    counted = round(sum(tensor.share_above * tensor.rows for tensor in above))
    norm = "-" if profile.relative_norm is None else f"{profile.relative_norm:.3g}"
    yield (
        f"{label}: {len(profile.tensors)} tensors, {profile.share_changed:.1%} of the weights "
        f"changed, ||delta|| / ||base|| {norm}, mean absolute change of a row (MAV) "
        f"{profile.mean_row_mav:.3g}"
    )
    yield (
        f"{label}: {counted} of the {rows} rows of the layers' matrices, "
        f"{counted / max(rows, 1):.1%}, have a MAV above {profile.threshold:.6g} "
        f"({profile.threshold_source})"
    )
    if profile.share_changed == 0:
        yield f"Warning: {label} equals the base: every delta is 0"
    if profile.share_on_grid is not None and profile.share_on_grid >= GRID_LIMIT:
        yield (
            f"Warning: {label} is stored in {' and '.join(profile.dtypes)}, and "
            f"{profile.share_on_grid:.0%} of its changed weights are at most two steps of that "
            "format from the base: this delta is largely rounding, and changes smaller than half a "
            "step are lost (save experts in float32 to see them)"
        )


def tell_comparison(found: Comparison) -> Iterator[str]:
    """Yield how alike every two experts are."""
    for pair in found.pairs:
        cosine, correlation = (
            "undefined" if value is None else f"{value:.3f}"
            for value in (pair.cosine, pair.correlation)
        )
        yield (
            f"{pair.first} and {pair.second}: cosine of their changes {cosine}, correlation of the "
            f"MAV of their rows {correlation}"
        )


def write(found: Analysis, out: Path, published: Grid | None) -> Iterator[str]:
    """Write all files of an analysis into the folder `out` and yield their paths.

    Yields a warning in place of the figures where matplotlib is missing or there is no layer.
    """
    grids: list[Grid] = []
    for label, profile, folder in zip(
        found.labels, found.profiles, _folders(found, out), strict=True
    ):
        yield _written(folder / "delta.json", _json(profile))
        if not profile.columns or not profile.num_layers:
            yield (
                f"Warning: {label}: no decoder layer has a weight matrix, so there is no table and "
                "no figure"
            )
            continue
        yield _written(folder / "delta.csv", table(profile))
        grid = profile.grid(title=label)
        grids.append(grid)
        if not can_draw():
            continue
        yield from map(str, heatmap([grid], folder / "delta"))
        if published is not None:
            told = rank_correlation(grid, published).text()
            for path in heatmap([grid, published], folder / "reference", headline=told):
                yield f"{path}  ({told})"
    if found.comparison is not None:
        yield _written(out / "comparison.json", _json(found.comparison))
        if can_draw() and found.comparison.pairs[0].layer_cosine:
            yield from map(str, comparison(found.comparison.pairs, out / "comparison"))
        if can_draw() and grids:
            yield from map(str, heatmap(grids, out / "delta"))
    if not can_draw():
        yield f"Warning: no figures: {HINT}"


def table(profile: DeltaProfile) -> str:
    """Return layers × parameters as CSV: the share of rows above the threshold.

    Layer 0 first; matrices in the paper's order, then vectors (one row each: 0 or 1). A cell is
    empty where a layer has no such parameter.
    """
    columns = (*profile.columns, *profile.vectors)
    grid = profile.grid(columns=columns)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["layer", *columns])
    for layer, values in enumerate(grid.values):
        writer.writerow([layer, *("" if value != value else f"{value:.9g}" for value in values)])
    return file.getvalue()


def _folders(found: Analysis, out: Path) -> list[Path]:
    """Return the folder of each expert's files."""
    if len(found.labels) == 1:
        return [out]
    return [out / label.replace("/", "_") for label in found.labels]


def _files_in(found: Analysis, out: Path) -> dict[Path, int]:
    """Return every file that an analysis could have written -> its number in the file system."""
    names = [f"{stem}.{kind}" for stem in ("delta", "reference", "comparison") for kind in KINDS]
    places = dict.fromkeys((out, *_folders(found, out)))
    paths = [place / n for place in places for n in ("delta.json", "delta.csv", *names)]
    paths.append(out / "comparison.json")
    return {path: path.stat().st_ino for path in paths if path.is_file()}


def _json(found: DeltaProfile | Comparison) -> str:
    return found.model_dump_json(indent=1) + "\n"


def _written(path: Path, text: str) -> str:
    write_text(path, text)
    return str(path)
