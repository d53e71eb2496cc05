"""The command `purestep data convert`: a store of structures in another format."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .. import documents

if TYPE_CHECKING:
    from ...data import HashSplit, Report

_UNITS = ("energy", "length", "forces", "stress", "stress_sign")


@click.command(
    "convert",
    short_help="Make a store of other files.",
    help="""Make a store of structures in other files: extended XYZ, ASE databases and trajectories, npz, HDF5, stores.

    \b
      purestep data convert frames.extxyz data/train.zarr --keys energy=REF_energy --keys forces=REF_forces
      purestep data convert a.npz b.npz out.zarr --units energy=Hartree --units length=Bohr
      purestep data convert frames.extxyz out.zarr --split validation=0.1 --split test=0.1

    Extended XYZ and ASE's own files need ASE, HDF5 needs h5py: pip install 'purestep[atoms]', or ase and h5py themselves.
    A frame that is wrong ends the conversion with nothing written; --skip-bad leaves such frames out, and says which.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="IN... OUT.zarr")
@click.option("--keys", multiple=True, metavar="OURS=THEIRS", help="What the files call energy, forces, stress, virial, group, ...")
@click.option("--levels", multiple=True, metavar="NAME=atom|frame|edge", help="Another array to keep, and what has a row of it.")
@click.option("--units", multiple=True, metavar="WHAT=UNIT", help=f"Of {', '.join(_UNITS)}; eV, Angstrom and tension otherwise.")
@click.option("--split", multiple=True, metavar="PART=SHARE", help="Draw validation or test by hash; the rest is for training.")
@click.option("--split-by", type=click.Choice(["content", "group"]), default="content", show_default=True, help="What stays together.")
@click.option("--split-seed", type=int, default=0, show_default=True, help="Another one draws other parts.")
@click.option("--no-references", is_flag=True, help="Fit no energies of the elements.")
@click.option("--skip-bad", is_flag=True, help="Leave out frames that are wrong.")
@click.option("--append", is_flag=True, help="Add to OUT.zarr, which exists then, with its own energies of the elements.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[str, ...], append: bool, as_json: bool, no_references: bool, **options: Any) -> None:
    """Convert, and print what was done."""
    if len(paths) < 2:
        raise click.UsageError("give at least one file to read, and last the store to make")
    if append and no_references:
        raise click.UsageError("--append keeps the energies of the elements that the store has; leave --no-references out")
    arguments = _arguments(**options)
    from ...data import append_converted, convert

    *sources, out = paths
    found = append_converted(sources, out, **arguments) if append else _new(convert, sources, out, no_references, arguments)
    if as_json:
        documents.emit({"schema": "purestep.data-convert/1", "store": out, "fingerprint": found.store.fingerprint, **_plain(found.report)})
    else:
        click.echo(f"{out}: {found.report}")
        for line in _shares(found, arguments["split"]):
            click.echo(line)


def _new(convert: Any, sources: list[str], out: str, no_references: bool, arguments: dict[str, Any]) -> Any:
    return convert(sources, out, reference_energies=None if no_references else "fit", **arguments)


def _arguments(
    keys: Sequence[str], levels: Sequence[str], units: Sequence[str], split: Sequence[str], split_by: str, split_seed: int, skip_bad: bool
) -> dict[str, Any]:
    """What both ways of converting take."""
    named = {"keys": _pairs("--keys", keys), "levels": _pairs("--levels", levels)}
    chosen = _pairs("--units", units, _UNITS)
    shares = _split(_pairs("--split", split, ("validation", "test")), split_by, split_seed)
    from ...data import Units

    return {**named, "units": Units(**chosen), "split": shares, "on_bad": "skip" if skip_bad else "strict"}  # type: ignore[arg-type]


def _pairs(option: str, texts: Sequence[str], known: Sequence[str] = ()) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for name, value in pairs.items():
        if not name or not value:
            raise click.UsageError(f"{option} {name}{'=' if value else ''}{value}: give name=value")
        if known and name not in known:
            raise click.UsageError(f"{option} {name}={value}: there is no {name!r} (known: {', '.join(known)})")
    return pairs


def _split(shares: dict[str, str], by: Any, seed: int) -> "HashSplit | None":
    from ...data import HashSplit
    from ...data.splitting import check_split

    try:
        numbers = {part: _share(part, share) for part, share in shares.items()}
        split = HashSplit(**{"validation": 0.0, "test": 0.0, **numbers}, by=by, seed=seed)
        check_split(split)
    except ValueError as error:
        raise click.UsageError(f"--split: {error}") from error
    return split if shares else None


def _share(part: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{part}={text} is no share; give a number such as 0.1, for a tenth") from None


def _shares(found: Any, split: "HashSplit | None") -> list[str]:
    """What was asked for of each part, and what came of it: whole groups, or few frames, fall where the hash puts them."""
    count = found.report.num_frames
    if split is None or not count:
        return []
    groups = f" by {len(found.store.attributes.get('group_names', ()))} groups" if split.by == "group" else ""
    asked = {"validation": split.validation, "test": split.test}
    return [
        f"{part}: asked for {100 * share:g} %, got {100 * found.report.parts.get(part, 0) / count:.3g} % of {count} frames{groups}"
        for part, share in asked.items()
        if share
    ]


def _plain(report: "Report") -> dict[str, Any]:
    """The report as JSON values."""
    named = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {
        **named,
        "units": str(report.units),
        "bad": [bad._asdict() for bad in report.bad],
        "suspicions": [suspicion._asdict() for suspicion in report.suspicions],
    }
