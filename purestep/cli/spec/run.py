"""The command `purestep spec run`: a new run, in a directory of its own; or the same run, taken up again."""

import os
import shutil
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..exits import ExitCode, Refusal, tell
from ..run_directory import claim, command_line, next_free
from .telling import PROFILE, PROGRESS, REPORT, telling_of

if TYPE_CHECKING:
    from ...distributed import Topology
    from ...spec.envelope import Spec


class _Run(click.Command):
    """A command whose `--dry-run` may have a number, but only after `=`: the word that follows is the spec."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--dry-run=1" if word == "--dry-run" else word for word in args])


@click.command(
    "run",
    cls=_Run,
    short_help="Run a spec.",
    help="""Run a spec, in a directory that holds nothing yet.

    \b
      purestep spec run train.json
      purestep spec run train.json --dry-run             one batch through everything; nothing is written
      purestep spec run train.json --dry-run=20 --distributed   with 20 batches, and two ranks
      purestep spec run train.json --set strategy.num_steps=100 --run-dir runs/short
      purestep spec run train.json --resume auto         go on where there is a checkpoint: for queues that stop jobs
      purestep spec run train.json --trust my.package    the spec names a model of my.package

    SIGTERM and SIGINT save a checkpoint and end the run with exit code 75; `purestep spec resume` goes on.""",
)
@click.argument("path", metavar="SPEC")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="A value in the place of the spec's; recorded.")
@click.option("--run-dir", metavar="D", help="In the place of the spec's output.run_dir.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Stop after N updates at the latest; recorded as an override.")
@click.option(
    "--dry-run",
    type=click.IntRange(min=1),
    metavar="[=N]",
    help="Try every part of the run with one batch, or N, and write nothing into it.",
)
@click.option("--resume", "taking_up", type=click.Choice(["never", "auto"]), default="never", help="auto: go on, if there is a checkpoint.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option(
    "--distributed/--no-distributed",
    default=None,
    help="Insist that torchrun or srun started this with others (a dry run needs none), or that it runs alone. Default: as it was started.",
)
@PROGRESS
@PROFILE
@REPORT
def command(path: str, overrides: tuple[str, ...], run_dir: str | None, max_steps: int | None, **options: Any) -> int:
    """Check, claim the directory, train."""
    from ...spec.building import check_model, missing_paths
    from ...spec.trust import check_names
    from .documents_of_specs import read
    from .granting import find_modules_here, granted
    from .labels import check_labels
    from .ranks import check_started_as_asked, joined
    from .sinks import check_installed

    if options["dry_run"] is None or not options["distributed"]:  # one process can rehearse what several are to do
        check_started_as_asked(options["distributed"], path)
    spec = read(path, overrides)
    grants = granted(options["trust"])
    check_names(spec, grants)  # before any path is looked at
    if missing := missing_paths(spec):
        raise Refusal("\n".join(problem.text() for problem in missing), ExitCode.PATH)
    check_model(spec)
    check_installed(spec)
    check_labels(spec, path)
    if shorter := _shortened(spec, max_steps):
        overrides = (*overrides, *shorter)
        spec = read(path, overrides)
    if run_dir is not None:
        spec = spec.model_copy(update={"output": spec.output.model_copy(update={"run_dir": os.path.abspath(run_dir)})})
    find_modules_here(grants)
    if options["dry_run"] is not None:
        from .dry_run import Rehearsal, rehearse_run

        return rehearse_run(Rehearsal(spec, grants, options["distributed"], options["dry_run"]))
    with joined(spec) as topology:
        return _start(spec, path, overrides, grants, options, topology)


def _start(
    spec: "Spec", path: str, overrides: tuple[str, ...], grants: tuple[str, ...], options: dict[str, Any], topology: "Topology"
) -> int:
    from .assembly import Request
    from .execution import execute
    from .ranks import on_rank_zero

    directory = spec.output.run_dir
    begun = options["taking_up"] == "auto" and os.path.isfile(os.path.join(directory, "spec.json"))
    found = on_rank_zero(topology, lambda: _found(directory) if begun else "")
    if topology.ranks.tell(found or ""):
        from ...spec.reading import read_spec
        from .resume import resume

        before = read_spec(os.path.join(directory, "spec.json"))
        return resume(before, spec, directory, {**options, "step": None, "run_dir": None}, topology, overrides=overrides)
    on_rank_zero(topology, lambda: _make_directory(spec, path, overrides, grants, begun))
    return execute(Request(spec, directory, grants, telling_of(options), topology))


def _found(directory: str) -> str:
    """Labels of the checkpoints that are there, as text, which can be told to other ranks."""
    from .places import checkpoints_of

    return " ".join(map(str, checkpoints_of(directory)))


def _make_directory(spec: "Spec", path: str, overrides: tuple[str, ...], grants: tuple[str, ...], begun: bool) -> None:
    from ...spec.failed_starts import is_in_use
    from ...spec.reading import document_of
    from .documents_of_specs import file_of
    from .record import describe_run, write_changes, write_installed

    directory = spec.output.run_dir
    if begun:
        if is_in_use(directory):
            raise Refusal(f"another process is at the run in {directory}", ExitCode.PATH)
        tell(f"{directory} holds no checkpoint yet; the run begins anew")
    else:
        _claim(path, directory, grants)
    shutil.copyfile(file_of(path), os.path.join(directory, "spec.source.json"))
    documents.write(os.path.join(directory, "spec.json"), document_of(spec))
    documents.write(os.path.join(directory, "run.json"), describe_run(spec, path, overrides))
    write_changes(directory, os.getcwd(), spec)
    write_installed(directory)


def _shortened(spec: "Spec", max_steps: int | None) -> tuple[str, ...]:
    """The overrides that make a run no longer than it may be; none if it is not."""
    from ...spec.summary import steps_of

    steps = None if max_steps is None else steps_of(spec)
    if max_steps is None or (steps is not None and steps <= max_steps):
        return ()
    others = [f"strategy.{name}=null" for name in ("num_epochs", "num_batches") if getattr(spec.strategy, name) is not None]
    return (*others, f"strategy.num_steps={max_steps}")


def _claim(path: str, run_dir: str, grants: tuple[str, ...]) -> None:
    from .granting import words_of

    try:
        claim(run_dir)
    except Refusal as refusal:
        trust = words_of(grants)
        resumable = [command_line("purestep", "spec", "resume", run_dir, *trust)] if _found(run_dir) else []
        advice = [*resumable, command_line("purestep", "spec", "run", path, "--run-dir", next_free(run_dir), *trust)]
        raise Refusal(refusal.message, refusal.code, advice) from refusal
