"""The command `purestep data inspect`: what is in stores, what they share, and what a spec would make of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..exits import tell
from ..new_files import check_new
from . import samples, sides

if TYPE_CHECKING:
    from ...spec.envelope import Spec


@click.command(
    "inspect",
    short_help="Say what is in a store.",
    help="""Say what is in stores: frames, labels and their coverage, elements, distributions, frames that look wrong.

    \b
      purestep data inspect data/train.zarr
      purestep data inspect shipped:g2 --png g2.png          the store that comes with the package, drawn
      purestep data inspect train.zarr validation.zarr       and the structures that stand in both
      purestep data inspect --spec train.json                the stores of a spec, and what its loss finds there
      purestep data inspect data/train.zarr --sample 3       and three frames, array by array

    Every frame is read. Structures that stand in two parts of a split, or in two stores, are reported.""",
)
@click.argument("paths", nargs=-1, metavar="STORE...")
@click.option("--spec", "spec_path", metavar="SPEC", help="Its stores, if none is named; and how many frames have the targets of its loss.")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Show so many frames, spread evenly: shapes, ranges, what is unknown."
)
@click.option("--png", metavar="FILE", help="Draw it too; one store, and the file must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[str, ...], spec_path: str | None, sample: int | None, png: str | None, as_json: bool) -> None:
    """Read the stores and print."""
    from ...data import draw_inspection, inspect
    from ...data.sharing import shared_structures
    from ...spec.building import open_store

    spec = _spec(spec_path) if spec_path is not None else None
    chosen = paths or (sides.stores_of(spec) if spec is not None else ())
    if not chosen:
        raise click.UsageError("name at least one store, or give --spec SPEC")
    if png is not None:
        if len(chosen) > 1:
            raise click.UsageError("--png draws one store; inspect them one by one")
        check_new(png)
    stores = {path: open_store(path) for path in chosen}
    found = [inspect(store.path) for store in stores.values()]
    shared = shared_structures(stores)
    shown = {path: samples.samples_of(store, sample) for path, store in stores.items()} if sample is not None else {}
    stated = _sides(spec, paths) if spec is not None else []
    if png is not None:
        draw_inspection(found[0], png)
        tell(f"wrote {png}")
    if as_json:
        rows = [{"path": path, **one.document(), "store": str(one.path)} for path, one in zip(chosen, found, strict=True)]
        extra = ({"samples": shown} if sample is not None else {}) | ({"spec": stated} if spec is not None else {})
        documents.emit({"schema": "purestep.data-inspect/1", "stores": rows, "shared": [pair._asdict() for pair in shared], **extra})
        return
    click.echo(_text(found, shared, shown, stated))


def _spec(path: str) -> "Spec":
    from ..spec.documents_of_specs import read

    return read(path)


def _sides(spec: "Spec", paths: Sequence[str]) -> list[dict[str, Any]]:
    """What the spec would read; of stores that are named, all that they hold."""
    if not paths:
        return sides.sides_of(spec)
    whole = {"paths": tuple(paths), "split": None, "validation_paths": (), "validation_split": None}
    return sides.sides_of(spec.model_copy(update={"dataset": spec.dataset.model_copy(update=whole)}))


def _text(found: Sequence[Any], shared: Sequence[Any], shown: Mapping[str, list[Any]], stated: Sequence[Any]) -> str:
    common = [
        f"  {pair.num_structures:,} in {pair.one} and {pair.other}, such as frames {pair.example[0]} and {pair.example[1]}"
        for pair in shared
    ]
    lines = ["\n\n".join(map(str, found))]
    for path, frames in shown.items():
        lines += ["", f"frames of {path} (least, mean, largest)", *map(samples.text_of, frames)]
    lines += ["", "for the loss of the spec", *map(sides.text_of, stated)] if stated else []
    lines += ["", f"equal structures in two parts: {'' if shared else 'none'}".rstrip(), *common]
    return "\n".join(lines)
