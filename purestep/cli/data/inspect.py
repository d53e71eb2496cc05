"""The command `purestep data inspect`: what is in stores, and what they share."""

import click

from .. import documents
from ..exits import tell
from ..new_files import check_new


@click.command(
    "inspect",
    short_help="Say what is in a store.",
    help="""Say what is in stores: frames, labels and their coverage, elements, distributions, frames that look wrong.

    \b
      purestep data inspect data/train.zarr
      purestep data inspect shipped:g2 --png g2.png          the store that comes with the package, drawn
      purestep data inspect train.zarr validation.zarr       and the structures that stand in both

    Every frame is read. Structures that stand in two parts of a split, or in two stores, are reported.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="STORE...")
@click.option("--png", metavar="FILE", help="Draw it too; one store, and the file must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[str, ...], png: str | None, as_json: bool) -> None:
    """Read the stores and print."""
    from ...data import draw_inspection, inspect
    from ...data.sharing import shared_structures
    from ...spec.building import open_store

    if png is not None:
        if len(paths) > 1:
            raise click.UsageError("--png draws one store; inspect them one by one")
        check_new(png)
    stores = {path: open_store(path) for path in paths}
    found = [inspect(store.path) for store in stores.values()]
    shared = shared_structures(stores)
    if png is not None:
        draw_inspection(found[0], png)
        tell(f"wrote {png}")
    if as_json:
        stated = [{"path": path, **one.document(), "store": str(one.path)} for path, one in zip(paths, found, strict=True)]
        documents.emit({"schema": "purestep.data-inspect/1", "stores": stated, "shared": [pair._asdict() for pair in shared]})
        return
    common = [
        f"  {pair.num_structures:,} in {pair.one} and {pair.other}, such as frames {pair.example[0]} and {pair.example[1]}"
        for pair in shared
    ]
    click.echo("\n\n".join(map(str, found)))
    click.echo("\n".join(["", f"equal structures in two parts: {'' if shared else 'none'}".rstrip(), *common]))
