"""The command `purestep debug compile`: the graphs that a spec's step needs, and why there is more than one."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from .. import documents

if TYPE_CHECKING:
    from ...spec.envelope import CompileSettings

_BACKENDS = ("inductor", "aot_eager", "eager")


@click.command(
    "compile",
    short_help="Say how a step is captured.",
    help="""Say how the step of a spec is captured: every graph, its size, what it took, and why the ones before did not do.

    \b
      purestep debug compile train.json
      purestep debug compile train.json --batches 20 --backend eager    quick: the graph is found, and run as it is

    Settings are those of runtime.compile, or the usual ones. A step that cannot be captured is an error that names the line.
    Nothing is written.""",
)
@click.argument("path", metavar="SPEC")
@click.option("--batches", "count", type=click.IntRange(min=1), default=5, show_default=True, help="How many are run, one after another.")
@click.option("--backend", type=click.Choice(_BACKENDS), help="What runs the graph, in the place of the spec's.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, count: int, backend: str | None, overrides: tuple[str, ...], trust: tuple[str, ...], as_json: bool) -> None:
    """Run a few batches through a compiled step, and print what was captured."""
    from ...spec.envelope import CompileSettings
    from ..preparing import prepared, read

    spec = read(path, overrides)
    settings = spec.runtime.compile or CompileSettings()
    if backend is not None:
        settings = settings.model_copy(update={"backend": backend})
    with prepared(spec, trust) as ready:
        graphs = _captured(ready, settings, count)
    if as_json:
        documents.emit({"schema": "purestep.debug-compile/1", **settings.model_dump(mode="json"), "batches": count, "graphs": graphs})
    else:
        click.echo("\n".join(_lines(graphs, count, settings)))


def _captured(ready: Any, settings: "CompileSettings", count: int) -> list[dict[str, Any]]:
    """What was captured, with the batch at which it was."""
    from ...capture import compile
    from ...spec.starting import first_state
    from ..preparing import batch_at

    training, batches = ready.pieces.training, ready.pieces.batches
    # every capture is wanted, so none is warned about or refused
    step = compile(training.step, **settings.model_copy(update={"on_recompile": "ignore"}).model_dump())
    state, _ = first_state(ready.spec, training, ready.device)
    graphs: list[dict[str, Any]] = []
    for number in range(count):
        state, _ = step(state, batch_at(batches, number, state))
        graphs += [{"batch": number, **dataclasses.asdict(record)} for record in step.explain()[len(graphs) :]]
    return graphs


def _lines(graphs: list[dict[str, Any]], count: int, settings: "CompileSettings") -> list[str]:
    lines = []
    for number, graph in enumerate(graphs, start=1):
        size = f"{graph['nodes']:,} operations, " if graph["nodes"] else ""
        lines.append(f"graph {number}  batch {graph['batch']}: {graph['reason']}")
        lines.append(
            f"         {size}found by {graph['engine']} in {graph['trace_seconds']:.2f} s, compiled by {settings.backend} in "
            f"{graph['compile_seconds']:.2f} s"
        )
        lines += [f"         reads {read}" for read in graph["host_reads"]]
        lines += [f"         {graph['replay']}"] if graph["replay"] else []
    many = "" if len(graphs) == 1 else "; batches of few sizes need few graphs, and on_recompile says what a run does about another one"
    return [*lines, f"{len(graphs)} graph{'' if len(graphs) == 1 else 's'} for {count} batch{'' if count == 1 else 'es'}{many}"]
