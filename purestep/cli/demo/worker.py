"""One process of the demo: `python -m purestep.cli.demo.worker RUN_DIR PART`. It trains from the newest checkpoint on.

Part `first` is killed on the way; part `second` compares itself with it, trains to the end and writes what came out.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from .. import documents
from ..exits import ExitCode, Refusal, end, tell
from . import layout
from .recipe import Recipe

if TYPE_CHECKING:
    from ...core.event import Listener
    from ...reporting.console import Mode


def main(run_dir: str, part: str, progress_mode: str) -> int:
    """Run one part; the exit code."""
    try:
        recipe = Recipe(**documents.read(os.path.join(run_dir, layout.RUN))["recipe"])
        with _repeatable(run_dir, recipe):
            return _run(run_dir, part, progress_mode, recipe)
    except (Exception, KeyboardInterrupt) as error:
        return end(error, run_dir)


def _run(run_dir: str, part: str, progress_mode: str, recipe: Recipe) -> int:
    from ...checkpoint import Checkpointer
    from ...loop import fit
    from ...reporting import ConsoleProgress, JsonlWriter, StopOnSignal
    from .outcome import write_outcome
    from .pieces import make_pieces
    from .proof import Comparison, Kill

    device = choose_device(recipe.device)
    pieces = make_pieces(recipe)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopOnSignal())
        progress = stack.enter_context(
            ConsoleProgress(
                every_n_batches=recipe.report_every,
                mode=cast("Mode", progress_mode),
                unit="frames",
                validation_metrics={"energy/mae_ev_per_atom": "energy eV/atom", "forces/mae_ev_per_angstrom": "forces eV/Å"},
            )
        )
        root = os.path.join(run_dir, layout.CHECKPOINTS)
        checkpointer = stack.enter_context(Checkpointer(root, every_n_steps=recipe.checkpoint_every))
        state = _start(run_dir, pieces.training.init(recipe.seed, device), recipe, len(pieces.batches))
        log = JsonlWriter(os.path.join(run_dir, layout.METRICS), every_n_batches=recipe.report_every)
        last = Kill(run_dir, recipe.kill_at, progress) if part == "first" else Comparison(run_dir, recipe.kill_at, progress)
        # the log first, so that a checkpoint never knows more than it
        listeners: list[Listener] = [log, progress, checkpointer, last, stop]
        result = fit(
            pieces.training, pieces.batches, state=state, num_steps=recipe.num_steps, validation=pieces.validation, listeners=listeners
        )
    if stop.received is not None and result.stop_reason == stop.received.name:
        tell(f"stop requested ({result.stop_reason}); saved {os.path.relpath(root)} at batch {int(result.state.counters.batch_count)}")
        return int(ExitCode.INTERRUPTED)
    write_outcome(run_dir, recipe, result.state)
    return int(ExitCode.DONE)


def choose_device(wanted: str) -> str:
    """Where the demo computes.

    Raises:
        Refusal: If it is to be a CUDA device, and there is none.
    """
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise Refusal(
            "--device cuda: this torch sees no CUDA device", ExitCode.ENVIRONMENT, ["purestep doctor", "purestep demo --device cpu"]
        )
    return "cuda" if wanted in ("auto", "cuda") and torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def _repeatable(run_dir: str, recipe: Recipe) -> Iterator[None]:
    """Arithmetic that gives the same bits each time, written down in the record of the run.

    One thread: small tensors gain nothing from a second one, and sums must not depend on how many there are.
    """
    from ...loop import RuntimeSettings, use_runtime

    with use_runtime(RuntimeSettings(deterministic=True, tf32=False, num_threads=1, seed=recipe.seed)) as settings:
        path = os.path.join(run_dir, layout.RUN)
        documents.write(path, {**documents.read(path), "runtime": settings})
        yield


def _start(run_dir: str, initial: Any, recipe: Recipe, num_batches: int) -> Any:
    """The newest checkpoint, or a new run."""
    from ...checkpoint import load
    from ...core import tree

    if not layout.has_checkpoint(run_dir):
        size = sum(leaf.numel() for leaf in tree.leaves(initial.params))
        what = "PaiNN" if recipe.num_members == 1 else f"{recipe.num_members} times PaiNN"
        tell(f"{what} with {size:,} parameters; {recipe.num_steps} steps of {recipe.batch_size} frames on {initial.seed.device}")
        return initial
    state = load(os.path.join(run_dir, layout.CHECKPOINTS), like=initial)
    step, epoch, batch = (int(getattr(state.counters, f"{name}_count")) for name in ("step", "epoch", "epoch_step"))
    tell(f"restored step {step} (epoch {epoch}, batch {batch} of {num_batches}) in process {os.getpid()}; no batch is read twice")
    return state


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
