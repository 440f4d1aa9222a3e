"""`layerswap delta`: from references to files.

Everything is read and computed before anything is written, and every file appears whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from ablations.delta.heatmap import draw_heatmaps
from ablations.delta.profile import DeltaProfile, compare_changes, profile_of, read_changes
from ablations.drawing.canvas import HINT, can_draw, drawing, images_of
from ablations.drawing.text_table import text_table
from ablations.machine.names import slug
from ablations.machine.progress import Step, tell
from ablations.machine.whole_files import (
    check_place,
    told_if_unwritable,
    write_bytes,
    write_text,
)
from ablations.models.find import find_model
from ablations.paper.published import Grid, published_grid
from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError

KINDS = ("png", "svg")

GRID_LIMIT = 0.7
"""Share of an expert's changed weights on the rounding grid from which its change is doubtful.

Simulated on weights N(0, 0.02): a bf16 expert has 0.71 where the correlation of the stored change
with the true one is 0.92 (mean change 6e-5), 0.79 where it is 0.51 (1e-5), 0.45 where it is 0.99.
"""


def delta(
    experts: Sequence[str],
    base: str | None,
    *,
    out: Path,
    threshold: float | None = None,
    reference: str | None = None,
) -> Iterator[str]:
    """Analyse, write files and yield what to tell; a warning starts with ``Warning:``.

    Args:
        experts: folders, hub ids or ``base+adapter``; none draws the `reference` alone.
        base: folder or hub id of their shared pretrained parent.
        out: folder for the files; several experts get one each in it.
        threshold: mean absolute change that rows are counted above; None finds one for each expert.
        reference: a published expert to draw beside.

    Raises:
        InputError: for what is wrong with a reference, the checkpoints or the pair of them;
            nothing is written then.
    """
    published = None if reference is None else published_grid(reference)
    check_place(out / "delta.csv")
    if not experts:
        if published is None:
            raise InputError("give an EXPERT and its --base, or a published one with --reference")
        if base is not None or threshold is not None:
            raise InputError(
                "--base and --threshold are of an EXPERT: add the expert to draw beside "
                f"{reference!r}, or give --reference alone"
            )
        with told_if_unwritable(out):
            yield from _draw([published], out / f"reference-{slug(published.title)}")
        return
    if base is None:
        raise InputError("the change is measured from a base: give the base model with --base")
    profiles, similarities = analyse(experts, base, threshold=threshold)
    for profile in profiles:
        yield from describe(profile)
    yield from _layer_table(profiles)
    for row in similarities[similarities["layer"].isna()].itertuples():
        cosine, correlation = (
            "undefined" if math.isnan(value) else f"{value:.3f}"
            for value in (row.cosine, row.correlation)
        )
        yield (
            f"{row.first} and {row.second}: cosine of their changes {cosine}, correlation of "
            f"the MAV of their rows {correlation}"
        )
    tell(Step("drawing figures"))
    with told_if_unwritable(out):
        yield from _write(profiles, similarities, out, published)


def analyse(
    experts: Sequence[str], base: str, *, threshold: float | None = None
) -> tuple[list[DeltaProfile], pd.DataFrame]:
    """Return the profile of each expert, and how alike every two are; writes nothing.

    Raises:
        InputError: as `delta`.
    """
    labels = label_all(experts)
    parent = find_model(base, name=Path(base).name)
    pairs = [
        open_pair(find_model(given, name=label), parent)
        for label, given in zip(labels, experts, strict=True)
    ]
    shared = [name for name in pairs[0].names if all(name in pair.names for pair in pairs)]
    changed = [
        (pair, label, read_changes(pair, shared)) for pair, label in zip(pairs, labels, strict=True)
    ]
    profiles = [profile_of(*expert, threshold) for expert in changed]
    tables = [compare_changes(*two) for two in itertools.combinations(changed, 2)]
    empty = pd.DataFrame(columns=["layer", "cosine", "correlation"])
    return profiles, pd.concat(tables) if tables else empty


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


def describe(profile: DeltaProfile) -> Iterator[str]:
    """Yield what a user should know of an expert before looking at a figure."""
    label, matrices = profile.label, profile.matrices
    rows = int(matrices["rows"].sum())
    above = round((matrices["share_above"] * matrices["rows"]).sum())
    norm = "-" if profile.relative_norm is None else f"{profile.relative_norm:.3g}"
    yield (
        f"{label}: {len(profile.tensors)} tensors, {profile.share_changed:.1%} of the weights "
        f"changed, ||delta|| / ||base|| {norm}, mean absolute change of a row (MAV) "
        f"{profile.mean_row_mav:.3g}"
    )
    yield (
        f"{label}: {above} of the {rows} rows of the layers' matrices, {above / max(rows, 1):.1%}, "
        f"have a MAV above {profile.threshold:.6g}"
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


def _layer_table(profiles: Sequence[DeltaProfile]) -> Iterator[str]:
    """Yield a table of each layer's share of each expert's change, as `placement: delta_share`."""
    shares = pd.DataFrame(index=range(profiles[0].num_layers))
    for profile in profiles:
        norms = profile.matrices.groupby("layer")["relative_norm"].sum()
        whole = norms.sum() or math.nan
        shares[profile.label] = norms.reindex(shares.index, fill_value=0.0) / whole
    rows = [
        (str(layer), *("-" if math.isnan(share) else f"{share:.4f}" for share in row))
        for layer, *row in shares.itertuples()
    ]
    if rows:
        yield "share of each expert's change, by layer (sums of the matrices' relative norms)"
        yield text_table(["layer", *shares.columns], rows)


def _write(
    profiles: Sequence[DeltaProfile],
    similarities: pd.DataFrame,
    out: Path,
    published: Grid | None,
) -> Iterator[str]:
    """Write all files into the folder `out` and yield their paths, and warnings."""
    grids = []
    for profile in profiles:
        place = out if len(profiles) == 1 else out / profile.label.replace("/", "_")
        yield _write_table(place / "delta.csv", profile.tensors)
        if not profile.matrices.empty:
            grids.append(profile.grid())
        else:
            yield f"Warning: {profile.label}: no decoder layer has a weight matrix, so no figure"
    if not similarities.empty:
        yield _write_table(out / "comparison.csv", similarities)
    if not can_draw():
        yield f"Warning: no figures: {HINT}"
    elif grids:
        yield from _draw([*grids, *([] if published is None else [published])], out / "delta")


def _draw(grids: Sequence[Grid], stem: Path) -> Iterator[str]:
    """Draw grids side by side on one colour scale and yield the paths of the images.

    Raises:
        LayerSwapError: without matplotlib.
    """
    with drawing(stem.name):
        images = images_of(draw_heatmaps(grids), KINDS)
    for kind, image in images.items():
        path = stem.with_name(f"{stem.name}.{kind}")
        write_bytes(path, image)
        yield str(path)


def _write_table(path: Path, table: pd.DataFrame) -> str:
    write_text(path, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
    return str(path)
