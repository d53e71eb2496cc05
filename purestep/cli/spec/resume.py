"""The command `purestep spec resume`: go on with a run, by the spec that is in its directory, or one that differs in safe ways."""

import os
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..exits import ExitCode, Refusal, tell
from .telling import PROFILE, PROGRESS, REPORT, telling_of

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...spec.envelope import Spec


@click.command(
    "resume",
    short_help="Go on with a run.",
    help="""Go on with a run from its newest checkpoint, bitwise as if it had never stopped.

    \b
      purestep spec resume runs/my-model
      purestep spec resume runs/my-model --set strategy.num_steps=9000 --set strategy.schedule.decay_steps=9000 \\
          --allow-change strategy.schedule                                          train longer, the decay stretched along
      purestep spec resume runs/my-model --step 500 --run-dir runs/other            go on from an older one, elsewhere

    The spec is that of the run. Another one, by --spec or --set, may differ in output, device and threads, and be longer; any other
    change has to be allowed by name. Trust is given anew.""",
)
@click.argument("place", metavar="RUN_OR_CHECKPOINT")
@click.option("--spec", "other", metavar="SPEC", help="In the place of the spec of the run.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's; recorded.")
@click.option(
    "--allow-change", "allowed", multiple=True, metavar="PATH", help="A field of the spec that may differ, such as strategy.update."
)
@click.option("--step", "--checkpoint-index", "step", type=int, help="Label of the checkpoint; -1 is the newest.")
@click.option("--run-dir", metavar="D", help="Go on in this directory, which must hold nothing, and leave the run as it is.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@PROGRESS
@PROFILE
@REPORT
def command(place: str, other: str | None, overrides: tuple[str, ...], allowed: tuple[str, ...], **options: Any) -> int:
    """Read the spec of the run, and train on."""
    from ...spec.reading import read_spec
    from .documents_of_specs import read
    from .places import place_of
    from .ranks import joined

    run_dir, named = place_of(place)
    before = read_spec(os.path.join(run_dir, "spec.json"))
    spec = read(other or os.path.join(run_dir, "spec.json"), overrides)
    spec = _in_directory(spec, before.output.run_dir)
    step = named if options["step"] is None else options["step"]
    with joined(spec) as topology:
        return resume(before, spec, run_dir, {**options, "step": None if step == -1 else step}, topology, allowed, overrides)


def resume(
    before: "Spec",
    spec: "Spec",
    run_dir: str,
    options: dict[str, Any],
    topology: "Topology",
    allowed: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
) -> int:
    """Go on with a run, by a spec that differs from its own only in ways that are safe or allowed.

    Args:
        before: The spec of the run.
        spec: The spec to go on by.
        options: `step`, `run_dir` (another directory, or None), `trust`, and how it is told of.
        topology: Who shares the run.
    """
    from ...spec.doubts import idle_updates
    from ...spec.summary import steps_of
    from ...spec.trust import check_names
    from ..run_directory import claim
    from .assembly import Request
    from .execution import execute
    from .finished import nothing_to_do
    from .granting import find_modules_here, granted
    from .places import start_at
    from .ranks import on_rank_zero
    from .record import describe_run
    from .sinks import check_installed

    found = _checked_changes(before, spec, allowed, topology.rank)
    tell(*(f"warning {one.text()}" for one in idle_updates(spec, 0, steps_of(spec) or 0) if topology.rank == 0))
    grants = granted(options["trust"])
    check_names(spec, grants)
    check_installed(spec)
    start = start_at(run_dir, options["step"], options["run_dir"] is not None, grants)._replace(changes_allowed=allowed)
    if (code := nothing_to_do(spec, run_dir, start, grants, topology)) is not None:
        return code
    find_modules_here(grants)
    directory = run_dir
    if options["run_dir"] is not None:
        directory = os.path.abspath(options["run_dir"])
        spec = _in_directory(spec, directory)
        record = describe_run(spec, os.path.join(run_dir, "spec.json"), overrides)
        on_rank_zero(topology, lambda: documents.write(os.path.join(claim(options["run_dir"]), "run.json"), record))
    attempt = {"resumed": start.root, "step": start.step, "overrides": list(overrides), "changes": found}
    return execute(Request(spec, directory, grants, telling_of(options), topology, start, attempt))


def _in_directory(spec: "Spec", run_dir: str) -> "Spec":
    return spec.model_copy(update={"output": spec.output.model_copy(update={"run_dir": run_dir})})


def _checked_changes(before: "Spec", spec: "Spec", allowed: tuple[str, ...], rank: int) -> list[str]:
    """The differences, which are shown; refused if one makes it another run."""
    from ...spec.continuing import changes, unsafe

    found = changes(before, spec)
    tell(*(one.text() for one in found if rank == 0))
    if refused := list(unsafe(found, allowed)):
        paths = [one.pointer.lstrip("/").replace("/", ".") for one in refused]
        advice = [f"--allow-change {path}" for path in paths]
        raise Refusal(
            f"the spec is not that of the run: {', '.join(paths)}; put it back, or allow the change by name", ExitCode.SPEC, advice
        )
    return [one.text() for one in found]
