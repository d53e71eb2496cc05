"""A run, rehearsed: one batch through everything that the run will do, from the forward pass to a checkpoint. Nothing of it is kept.

Each rung of the ladder stands on those below it. What the run itself would not do is not needed, and says so.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..checkpoint import load, save
from ..core import tree
from ..core.event import Event
from ..core.hook import Stage
from ..core.state import TrainState
from ..core.step import Step
from ..errors import StallError
from ..loop import fit
from ..testing import assert_trees_equal
from .building import Pieces
from .envelope import Spec
from .rung import Failure, Rung, climb
from .starting import first_state

_CLOSE = {"fp32": {torch.float64: 1e-8, torch.float32: 1e-3}, "bf16": {}, "fp16": {}}
_CLOSE_IN_HALF = 5e-2
_MOST_STEPS = 3


def rehearse(
    spec: Spec, pieces: Pieces, device: str, compiled: Step | None, *, ranks: Callable[[], str] | None = None, num_batches: int = 1
) -> Iterator[Rung]:
    """Climb the ladder; it ends at the first rung that fails.

    Args:
        device: Where the run will compute.
        compiled: The step as the run will call it; None if the run does not compile it.
        ranks: How several ranks are tried, such as `try_two_ranks` of this spec; None if the run is of one process.
        num_batches: How many batches are trained on in a row; at least 1.
    """
    ladder = _Ladder(spec, pieces, device, compiled, num_batches)
    rungs: dict[str, Callable[[], str | None]] = {
        "forward": ladder.forward,
        "update": ladder.update,
        "device": ladder.device,
        "compiled": ladder.compiled,
        "checkpoint": ladder.checkpoint,
        "steps": ladder.steps,
        "validation": ladder.validation,
        "ranks": ranks or (lambda: None),
    }
    for name, attempt in rungs.items():
        rung = climb(name, attempt, unneeded=_NOT_NEEDED.get(name, ""))
        yield rung
        if rung.outcome == "failed":
            return


_NOT_NEEDED = {
    "device": "the run computes on the CPU, as above",
    "compiled": "the run does not compile its step (runtime.compile is null)",
    "steps": "one batch was asked for (--dry-run=N: so many in a row)",
    "validation": "the run does not validate",
    "ranks": "the run is of one process (--distributed rehearses one of several)",
}


class _Ladder:
    """The rungs, each a method that says what it saw; None: the run does not do this."""

    def __init__(self, spec: Spec, pieces: Pieces, device: str, compiled: Step | None, num_batches: int):
        self.spec, self.training, self.pieces, self.where, self.step_of_run = spec, pieces.training, pieces, device, compiled
        self.num_batches = num_batches
        self.first = first_state(spec, pieces.training, "cpu")[0]
        self.batch = pieces.batches.batch(0, 0)

    def forward(self) -> str:
        """One batch on the CPU: predictions, and a label for every term."""
        predictions, sums = self.training.evaluate(self.first, self.batch)
        if empty := [name for name, term in sums.items() if float(term.denominator) == 0]:
            raise Failure(f"the first batch has no labels for {', '.join(empty)}")
        means = {name: float(term.numerator) / float(term.denominator) for name, term in sums.items()}
        if bad := [name for name, mean in means.items() if not math.isfinite(mean)]:
            raise Failure(f"{', '.join(bad)} is not finite at the first weights")
        shown = ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
        return f"on the CPU: {shown}; predictions {', '.join(predictions)}"

    def update(self) -> str:
        """Loss, backward and update of the same batch."""
        self.second, self.metrics = self._step(self.first, self.batch)
        moved, steps = self._moved(), 1
        while not moved and steps < _MOST_STEPS:  # a warm-up may begin at a learning rate of 0
            self.second, steps = self._step(self.second, self.batch)[0], steps + 1
            moved = self._moved()
        names = sorted(self.training.trainable)
        after = dict(tree.items(self.second.params))
        if bad := [name for name in names if not bool(after[name].isfinite().all())]:
            raise Failure(f"{len(bad)} parameters are not finite after the update, among them {bad[0]}")
        words = f"loss {self.metrics['loss/total']:.6g}"
        applied = int(self.second.counters.step_count)
        if not moved and applied < 2:
            return f"{words}; the chain holds updates back ({applied} of {steps} applied), which accumulation and gates may do"
        if not moved:
            raise Failure(f"{words}; no parameter moved in {applied} updates: is the learning rate 0, or does the loss reach none of them?")
        still = [name for name in names if name not in moved]
        note = f"; {len(still)} did not, among them {still[0]}" if still else ""
        return f"{words}; {len(moved)} of {len(names)} parameters moved in {applied} update{'s' if applied > 1 else ''}{note}"

    def _moved(self) -> list[str]:
        before, after = (dict(tree.items(state.params)) for state in (self.first, self.second))
        return [name for name in self.training.trainable if not torch.equal(before[name], after[name])]

    def device(self) -> str | None:
        """The same batch where the run computes."""
        if self.where == "cpu":
            return None
        self.first, self.batch = tree.to_device(self.first, self.where), tree.to_device(self.batch, self.where)
        there, metrics = self._step(self.first, self.batch)
        words = self._compare(metrics, f"on {self.where}", "on the CPU")
        self.second, self.metrics = there, metrics
        return f"{words}; {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB at most"

    def compiled(self) -> str | None:
        """The same batch through the compiled step."""
        if self.step_of_run is None:
            return None
        _, metrics = self._step(self.first, self.batch, self.step_of_run)
        return self._compare(metrics, "compiled", "eager")

    def checkpoint(self) -> str:
        """Out to a directory and back: the same state, and the same next step."""
        with tempfile.TemporaryDirectory(prefix="purestep-dry-run-") as directory:
            save(directory, self.second)
            back = load(directory, like=self.second)
        batch = tree.to_device(self.pieces.batches.batch(0, 1 % len(self.pieces.batches)), self.where)
        try:
            assert_trees_equal(back, self.second, "the state that was loaded")
            assert_trees_equal(self._step(back, batch)[0], self._step(self.second, batch)[0], "the next step from it")
        except AssertionError as different:
            raise Failure(str(different)) from different
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(self.second))
        return f"{size / 2**20:.2f} MiB, bitwise the same, and so is the next step"

    def steps(self) -> str | None:
        """The first batches of the run in a row, as the run takes them."""
        if self.num_batches == 1:
            return None
        losses: list[float] = []

        def note(event: Event) -> None:
            if event.stage is Stage.AFTER_BATCH:
                losses.append(float(event.metrics["loss/total"]))
                if not math.isfinite(losses[-1]):
                    raise Failure(f"the loss of batch {len(losses)} of {self.num_batches} is {losses[-1]}")

        state = first_state(self.spec, self.training, self.where)[0]
        try:
            result = fit(
                self.training, self.pieces.batches, state=state, num_batches=self.num_batches, step=self.step_of_run, listeners=[note]
            )
        except StallError as stalled:
            raise Failure(str(stalled)) from stalled
        updates = int(result.state.counters.step_count)
        return f"{self.num_batches} batches in a row, {updates} updates: loss {losses[0]:.6g} at the first, {losses[-1]:.6g} at the last"

    def validation(self) -> str | None:
        """One batch of the data that is held back."""
        if self.pieces.validation is None:
            return None
        batch = tree.to_device(next(iter(self.pieces.validation.data)), self.where)
        _, sums = self.training.evaluate(self.second, batch)
        if empty := [name for name, term in sums.items() if float(term.denominator) == 0]:
            raise Failure(f"the first batch of the validation has no labels for {', '.join(empty)}")
        return ", ".join(f"{name} {float(term.numerator) / float(term.denominator):.4g}" for name, term in sums.items())

    def _step(self, state: TrainState, batch: Any, step: Step | None = None) -> tuple[TrainState, dict[str, float]]:
        new, metrics = (step or self.training.step)(state, batch)
        numbers = {name: float(value) for name, value in metrics.items() if value.numel() == 1}
        if not math.isfinite(numbers["loss/total"]):
            raise Failure(f"the loss is {numbers['loss/total']}")
        return new, numbers

    def _compare(self, metrics: dict[str, float], what: str, other: str) -> str:
        """Metrics of the same step, computed elsewhere: rounding may differ, by as much as sums of their precision do."""
        own = _CLOSE[self.spec.runtime.precision]
        most = own.get(tree.leaves(self.first.params)[0].dtype, _CLOSE_IN_HALF)
        worst = 0.0
        for name in ("loss/total", "update/grad_norm"):
            if name in metrics and name in self.metrics:
                one, two = metrics[name], self.metrics[name]
                worst = max(worst, abs(one - two) / max(abs(one), abs(two), 1e-30))
        if not worst <= most:
            raise Failure(f"{what} and {other} differ by {worst:.1e} in loss or gradient norm; more than {most:.0e} is no rounding")
        return f"{what} and {other} agree to {worst:.1e} in loss and gradient norm"
