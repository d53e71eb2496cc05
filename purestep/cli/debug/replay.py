"""The command `purestep debug replay`: one step of a run again, from a checkpoint, and what happens inside of it."""

import math
import os
from typing import TYPE_CHECKING, Any

import click

from .. import documents
from ..ckpt.places import STEP, choose
from ..exits import ExitCode, Refusal, tell

if TYPE_CHECKING:
    from ...core.state import TrainState
    from .one_step import Step

_SHOWN = 8


@click.command(
    "replay",
    short_help="Run one step of a run again, and look inside.",
    help="""Run the step after a checkpoint again, eagerly, on the batch that the run had next; say what it saw.

    \b
      purestep debug replay runs/my-model                          after the newest checkpoint
      purestep debug replay runs/my-model --step 1200 --batches 50    up to 50, to the first with a value that is not finite
      purestep debug replay runs/my-model/crash/step_000001203     the step that ended the run, with what it was given

    Told are the terms of the loss, the norms of the gradients, the first leaf that is not finite, and the operation that made it so.
    Nothing is written.""",
)
@click.argument("path", metavar="RUN_OR_CRASH")
@STEP
@click.option("--batches", "count", type=click.IntRange(min=1), default=1, show_default=True, help="How many; the last one is told.")
@click.option("--trust", multiple=True, metavar="PREFIX", help="Package, module or class that the spec may name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: str, step: str, count: int, trust: tuple[str, ...], as_json: bool) -> None:
    """Restore, run, look."""
    from ..preparing import prepared, read
    from .crash import is_crash, replayed

    crashed = is_crash(path)
    run_dir = os.path.dirname(os.path.dirname(os.path.abspath(path))) if crashed else path
    if not os.path.isfile(os.path.join(run_dir, "spec.json")):
        raise Refusal(f"{run_dir} is no directory of a run: there is no spec.json in it", ExitCode.PATH)
    if crashed and (step != "latest" or count != 1):
        raise click.UsageError("what a failed step was given is one batch; leave --step and --batches out")
    with prepared(read(os.path.join(run_dir, "spec.json")), trust) as ready:
        done = replayed(path, ready) if crashed else _last_step(ready.pieces, _restored(run_dir, step, ready), count)
        document = {"runtime": ready.settings, **_document(ready.pieces.training, done)}
    if as_json:
        documents.emit({"schema": "purestep.debug-replay/1", "run_dir": run_dir, **document})
    else:
        click.echo("\n".join(_lines(document)))


def _restored(run_dir: str, step: str, ready: Any) -> "TrainState":
    """The state of a checkpoint, if it is of the run that the spec describes."""
    from ...checkpoint import load
    from ...spec.continuing import check_description

    checkpoint = choose(run_dir, step)
    check_description(checkpoint.manifest.extra, ready.spec, ready.pieces.batches, what=f"the run in {run_dir}")
    tell(f"restored {checkpoint.path}")
    return load(checkpoint.path, like=ready.pieces.training.init(ready.spec.runtime.seed, ready.device))


def _last_step(pieces: Any, state: "TrainState", count: int) -> "Step":
    """Run so many steps, or as many as are finite; the last of them."""
    from ...core import tree
    from .one_step import run_step

    training, batches = pieces.training, pieces.batches
    while True:
        if int(state.counters.epoch_step_count) >= len(batches):
            state = training.end_epoch(state)
        epoch, index = int(state.counters.epoch_count), int(state.counters.epoch_step_count)
        done = run_step(training, state, tree.to_device(batches.batch(epoch, index), state.seed.device))
        count -= 1
        finite = all(math.isfinite(float(done.metrics[name])) for name in ("loss/total", "update/grad_norm"))
        if not count or not finite:
            return done
        state = done.after


def _document(training: Any, step: "Step") -> dict[str, Any]:
    from .one_step import first_operations, gradient_norms, nonfinite_leaves

    counters = step.before.counters
    bad = nonfinite_leaves(step)
    first, first_nan = first_operations(training, step) if bad else (None, None)
    return {
        "batch": {name: int(getattr(counters, f"{name}_count")) for name in ("batch", "step", "epoch", "epoch_step")},
        "finite": not bad,
        "applied": bool(step.metrics["update/applied"]),
        "metrics": {name: float(value) for name, value in step.metrics.items() if value.numel() == 1},
        "gradient_norms": gradient_norms(step),
        "nonfinite": [leaf._asdict() for leaf in bad],
        "first_operation": None if first is None else first._asdict(),
        "first_nan_operation": None if first_nan is None else first_nan._asdict(),
    }


def _lines(document: dict[str, Any]) -> list[str]:
    place, metrics, norms = document["batch"], document["metrics"], document["gradient_norms"]
    lines = [
        f"batch {place['batch']} (epoch {place['epoch']}, number {place['epoch_step']}), after {place['step']} updates: "
        f"the update was {'applied' if document['applied'] else 'vetoed'}"
    ]
    lines += [f"  {name:<40}{value:.6g}" for name, value in metrics.items() if name.startswith("loss/")]
    lines.append(f"  {'gradient norm':<40}{metrics['update/grad_norm']:.6g}")
    lines += [f"    {path:<38}{norm:.6g}" for path, norm in list(norms.items())[:_SHOWN]]
    lines += [f"    ... and {len(norms) - _SHOWN} more"] * (len(norms) > _SHOWN)
    if document["finite"]:
        return [*lines, "all values are finite"]
    leaf, *others = document["nonfinite"]
    lines.append(
        f"not finite: {len(others) + 1} leaves, first {leaf['part']}: {leaf['path']} ({leaf['num_bad']:,} of {leaf['num_values']:,} values)"
    )
    return lines + _operations(document["first_operation"], document["first_nan_operation"])


def _operations(first: dict[str, Any] | None, first_nan: dict[str, Any] | None) -> list[str]:
    if first is None and first_nan is None:
        return ["no operation made it so out of finite values: it came in with the batch or the state"]
    found = [first] if first_nan is None or first == first_nan else [first, first_nan]
    return [_operation(one) for one in found if one is not None]


def _operation(found: dict[str, Any]) -> str:
    inside = f" in {found['module']}" if found["module"] else ""
    return (
        f"first {found['value']}: {found['operation']}{inside}, {'backward pass started at' if found['backward'] else 'at'} {found['line']}"
    )
