"""A run, rehearsed: one batch through everything that the run will do, from the forward pass to a checkpoint. Nothing of it is kept.

Each rung of the ladder stands on those below it. What the run itself would not do is not tried, and says so.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch

from ..checkpoint import load, save
from ..core import tree
from ..core.state import TrainState
from ..core.step import Step
from ..testing import assert_trees_equal
from .building import Pieces
from .envelope import Spec
from .starting import first_state

Outcome = Literal["passed", "failed", "not tried"]
_CLOSE = {"fp32": {torch.float64: 1e-8, torch.float32: 1e-3}, "bf16": {}, "fp16": {}}
_CLOSE_IN_HALF = 5e-2
_MOST_STEPS = 3


class Rung(NamedTuple):
    """One thing that was tried."""

    name: str
    outcome: Outcome
    words: str
    seconds: float


class _Failure(Exception):
    """What a rung found, in words."""


def rehearse(spec: Spec, pieces: Pieces, device: str, compiled: Step | None) -> Iterator[Rung]:
    """Climb the ladder; it ends at the first rung that fails.

    Args:
        device: Where the run will compute.
        compiled: The step as the run will call it; None if the run does not compile it.
    """
    ladder = _Ladder(spec, pieces, device, compiled)
    for name in ("forward", "update", "device", "compiled", "checkpoint", "validation", "ranks"):
        climb: Callable[[], str | None] = getattr(ladder, name)
        began = time.perf_counter()
        try:
            words = climb()
        except _Failure as failure:
            yield Rung(name, "failed", str(failure), time.perf_counter() - began)
            return
        outcome: Outcome = "not tried" if words is None else "passed"
        yield Rung(name, outcome, _NOT_TRIED[name] if words is None else words, time.perf_counter() - began)


_NOT_TRIED = {
    "device": "the run computes on the CPU, as above",
    "compiled": "the run does not compile its step (runtime.compile is null)",
    "validation": "the run does not validate",
    "ranks": "a rehearsal is of one process, however many will share the run",
}


class _Ladder:
    """The rungs, each a method that says what it saw; None: the run does not do this."""

    def __init__(self, spec: Spec, pieces: Pieces, device: str, compiled: Step | None):
        self.spec, self.training, self.pieces, self.where, self.step_of_run = spec, pieces.training, pieces, device, compiled
        self.first = first_state(spec, pieces.training, "cpu")[0]
        self.batch = pieces.batches.batch(0, 0)

    def forward(self) -> str:
        """One batch on the CPU: predictions, and a label for every term."""
        predictions, sums = self.training.evaluate(self.first, self.batch)
        if empty := [name for name, term in sums.items() if float(term.denominator) == 0]:
            raise _Failure(f"the first batch has no labels for {', '.join(empty)}")
        means = {name: float(term.numerator) / float(term.denominator) for name, term in sums.items()}
        if bad := [name for name, mean in means.items() if not math.isfinite(mean)]:
            raise _Failure(f"{', '.join(bad)} is not finite at the first weights")
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
            raise _Failure(f"{len(bad)} parameters are not finite after the update, among them {bad[0]}")
        words = f"loss {self.metrics['loss/total']:.6g}"
        applied = int(self.second.counters.step_count)
        if not moved and applied < 2:
            return f"{words}; the chain holds updates back ({applied} of {steps} applied), which accumulation and gates may do"
        if not moved:
            raise _Failure(
                f"{words}; no parameter moved in {applied} updates: is the learning rate 0, or does the loss reach none of them?"
            )
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
            raise _Failure(str(different)) from different
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(self.second))
        return f"{size / 2**20:.2f} MiB, bitwise the same, and so is the next step"

    def validation(self) -> str | None:
        """One batch of the data that is held back."""
        if self.pieces.validation is None:
            return None
        batch = tree.to_device(next(iter(self.pieces.validation.data)), self.where)
        _, sums = self.training.evaluate(self.second, batch)
        if empty := [name for name, term in sums.items() if float(term.denominator) == 0]:
            raise _Failure(f"the first batch of the validation has no labels for {', '.join(empty)}")
        return ", ".join(f"{name} {float(term.numerator) / float(term.denominator):.4g}" for name, term in sums.items())

    def ranks(self) -> str | None:
        """Several processes, which a rehearsal does not start."""
        return None

    def _step(self, state: TrainState, batch: Any, step: Step | None = None) -> tuple[TrainState, dict[str, float]]:
        new, metrics = (step or self.training.step)(state, batch)
        numbers = {name: float(value) for name, value in metrics.items() if value.numel() == 1}
        if not math.isfinite(numbers["loss/total"]):
            raise _Failure(f"the loss is {numbers['loss/total']}")
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
            raise _Failure(f"{what} and {other} differ by {worst:.1e} in loss or gradient norm; more than {most:.0e} is no rounding")
        return f"{what} and {other} agree to {worst:.1e} in loss and gradient norm"
