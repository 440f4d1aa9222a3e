"""`layerswap delta`: from references to files.

Everything is read and computed before anything is written, and every file appears whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ablations.delta.heatmap import draw_heatmaps
from ablations.delta.profile import DeltaProfile, profile_of
from ablations.drawing.canvas import HINT, can_draw, drawing, images_of
from ablations.machine.progress import Step, show_step
from ablations.machine.safe_text import slug
from ablations.machine.whole_files import (
    check_results,
    list_results,
    write_bytes,
    write_errors,
    write_text,
)
from ablations.models.find import find_model
from ablations.paper.published import Grid, published_grid
from layerswap_method.deltas.pair import read_pair
from layerswap_method.errors import InputError
from layerswap_method.progress import Log

_KINDS = ("png", "svg")
"""Kinds of image files of a figure."""


def delta(
    experts: Sequence[str],
    base: str | None,
    log: Log,
    *,
    out: Path,
    threshold: float | None = None,
    reference: str | None = None,
) -> None:
    """Analyse the change of experts, and write files.

    Args:
        experts: folders, hub ids or ``base+adapter``; none draws the `reference` alone.
        base: folder or hub id of their shared pretrained parent.
        log: is called with what was seen, and with each file; a warning starts with ``Warning:``.
        out: folder for the files; several experts get one each in it.
        threshold: mean absolute change that rows are counted above; None finds one for each expert.
        reference: a published expert to draw next to them.

    Raises:
        InputError: for what is wrong with a reference, the checkpoints or the pair of them;
            nothing is written then, nor where a file of the user is in the way.
    """
    published = [] if reference is None else [published_grid(reference)]
    check_results(out, _file_names(experts, published))
    profiles: list[DeltaProfile] = []
    if experts:
        if base is None:
            raise InputError("the change is measured from a base: give the base model with --base")
        profiles = measure_profiles(experts, base, threshold=threshold)
        for profile in profiles:
            for line in _describe(profile):
                log(line)
    elif not published:
        raise InputError("give an EXPERT and its --base, or a published one with --reference")
    elif base is not None or threshold is not None:
        raise InputError(
            "--base and --threshold need an EXPERT: add the expert to draw next to "
            f"{reference!r}, or give --reference alone"
        )
    show_step(Step("drawing figures"))
    with write_errors(out):
        for profile in profiles:
            name = _table_name(profile.label, len(profiles))
            table = profile.tensors.to_csv(index=False, float_format="%.9g", lineterminator="\n")
            write_text(out / name, table)
            list_results(out, [name])
            log(str(out / name))
            if profile.matrices.empty:
                log(f"Warning: {profile.label}: no matrix in a decoder layer, so no figure")
        grids = [profile.grid() for profile in profiles if not profile.matrices.empty]
        if profiles and not can_draw():
            log(f"Warning: no figures: {HINT}")
        elif grids or not profiles:
            stem = _figure_name(published if not profiles else ())
            with drawing(stem):
                images = images_of(draw_heatmaps([*grids, *published]), _KINDS)
            for kind, image in images.items():
                write_bytes(out / f"{stem}.{kind}", image)
                list_results(out, [f"{stem}.{kind}"])
                log(str(out / f"{stem}.{kind}"))


def _table_name(label: str, count: int) -> str:
    """Return the file of an expert's table, one of `count`."""
    return "delta.csv" if count == 1 else f"{label.replace('/', '_')}/delta.csv"


def _figure_name(published: Sequence[Grid]) -> str:
    """Return the name of the figure without its kind; without `published`, that of the experts'."""
    return f"reference-{slug(published[0].title)}" if published else "delta"


def _file_names(experts: Sequence[str], published: Sequence[Grid]) -> list[str]:
    labels = label_all(experts) if experts else []
    figure = _figure_name(() if experts else published)
    return [
        *(_table_name(label, len(labels)) for label in labels),
        *(f"{figure}.{kind}" for kind in _KINDS),
    ]


def measure_profiles(
    experts: Sequence[str], base: str, *, threshold: float | None = None
) -> list[DeltaProfile]:
    """Return the profile of each expert; writes nothing. Raises as `delta` does."""
    parent = find_model(base, name=Path(base).name)
    pairs = {
        label: read_pair(find_model(expert, name=label), parent)
        for label, expert in zip(label_all(experts), experts, strict=True)
    }
    return [profile_of(pair, label, threshold) for label, pair in pairs.items()]


def label_all(experts: Sequence[str]) -> list[str]:
    """Return a short name for each reference: the last part of its path, longer where two agree."""
    references = [expert.rstrip("/") for expert in experts]
    for reference in references:
        if references.count(reference) > 1:
            raise InputError(f"{reference} is named twice")
    paths = []
    for reference in references:
        path = reference.partition("+")[2] or reference
        if path.split("/")[-1] in ("", ".", ".."):
            path = str(Path(path).resolve())
        paths.append(path)
    for depth in range(1, 1 + max(path.count("/") + 1 for path in paths)):
        labels = ["/".join(path.split("/")[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return list(experts)


def _describe(profile: DeltaProfile) -> Iterator[str]:
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
