"""Two processes on this machine that share small batches unequally, against one that sees the whole of them.

The promise of training on several ranks, tried on a spec with its own model, loss, hooks and updates: weights are those of one process.
It is tried in float64 and on the CPU, where only the order of sums can make a difference.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..checkpoint import load, save
from ..core import tree
from ..core.state import TrainState
from ..core.step import Step
from ..data import Loader, index_at
from ..distributed import Topology, check_same_state
from ..distributed.local import gather_shards, is_alike
from ..distributed.local_processes import run_on_local_processes
from ..errors import DistributedError
from ..loop import RuntimeSettings, use_runtime
from .building import Pieces, build
from .envelope import Spec
from .rung import Failure, NotTried
from .sharing import shared_training
from .starting import first_state

_MOST_FRAMES, _LEAST_FRAMES = 8, 3  # of one batch of both ranks
_ENOUGH_UPDATES, _MOST_STEPS = 2, 8  # a warm-up may begin at a learning rate of 0, and accumulation waits
_ROUNDING = 1e-10  # float64: a few sums of a few frames in another order
_SHAKY = 1e-11  # what moves one process by more than this, when its frames come in another order, cannot be compared by that
_START_SECONDS = 120.0  # two interpreters that import torch, on a busy machine
_SLOWER = 30.0  # how much longer ranks may take than one process, which starts warm


class _Seen(NamedTuple):
    """What is compared."""

    params: Any
    buffers: Any
    losses: Tensor
    """(steps, metrics whose name begins with `loss/`, in order of their names)."""


class _Trained(NamedTuple):
    """Where some steps have come to."""

    state: TrainState
    losses: Tensor
    names: tuple[str, ...]
    """Of the second axis of the losses."""

    @property
    def seen(self) -> _Seen:
        return _Seen(self.state.params, self.state.buffers, self.losses)


def try_two_ranks(spec: Spec, trust: Sequence[str] = ()) -> str:
    """Train one process and two ranks on the same small batches, and compare.

    Args:
        spec: With absolute paths; it is left alone, and so is its run.
        trust: As for `build`.

    Returns:
        What was seen, in words.

    Raises:
        Failure: If the weights are not those of one process, or a rank does not come through; with the leaf, and what to do.
        NotTried: If there is too little data to share, or the step does not run in float64.
    """
    small = _in_small(spec)
    began = time.perf_counter()
    try:
        pieces = build(small, trust=trust)
        count = _count(pieces.batches)
        whole, num_steps = _until_updated(_training(small, pieces, range(count)))
        turned = _after(_training(small, pieces, range(count)[::-1]), num_steps)
    except NotTried:
        raise
    except Exception as error:  # of the user's code too: it was seen to run as the spec has it, but nobody has promised more
        raise NotTried(
            f"one process does not take steps on {_MOST_FRAMES} frames in float64, as ranks are compared: {type(error).__name__}: {error}"
        ) from error
    seconds = _START_SECONDS + _SLOWER * (time.perf_counter() - began)
    shared = _share(small, trust, num_steps, whole.seen, seconds)
    verdict = _verdict(_differences(shared, whole.seen), _differences(turned.seen, whole.seen), whole, shared, count)
    return verdict + _note_on_batch_norm(spec, pieces)


def _in_small(spec: Spec) -> Spec:
    """The same training in float64 on the CPU, with batches for two."""
    data = spec.dataset.model_copy(update={"dtype": "float64", "batch_size": _MOST_FRAMES, "last": "keep"})
    # statistics of the share of a rank, the other choice, are not meant to give the weights of one process
    ranks = spec.runtime.distributed.model_copy(update={"batch_norm": "synchronised"})
    changes = {"device": "cpu", "precision": "fp32", "compile": None, "microbatches": 1, "distributed": ranks}
    return spec.model_copy(update={"dataset": data, "runtime": spec.runtime.model_copy(update=changes)})


def _count(batches: Loader) -> int:
    """Frames of one batch of both ranks."""
    size = len(batches.dataset)
    if size < _LEAST_FRAMES:
        raise NotTried(f"two ranks need {_LEAST_FRAMES} frames to share unequally, and there are {size}")
    return min(_MOST_FRAMES, size)


def _places(count: int, rank: int) -> range:
    """The places of a rank in a batch: 3 and 5 of 8."""
    first = max(3 * count // 8, 1)
    return range(first) if rank == 0 else range(first, count)


# --- training -----------------------------------------------------------------------------------------------------


def _training(spec: Spec, pieces: Pieces, places: Sequence[int]) -> Iterator[_Trained]:
    """Steps on the frames at some places of one batch after the other."""
    state, _ = first_state(spec, pieces.training, "cpu")
    return _steps(pieces.training.step, state, _batches(pieces.batches, places))


def _batches(batches: Loader, places: Sequence[int]) -> Iterator[Any]:
    size, count = len(batches.dataset), _count(batches)
    for begin in itertools.count(step=count):
        chosen = index_at(batches.seed, 0, (begin + np.array(places)) % size, size)
        yield batches.collate([batches.dataset[frame] for frame in chosen.tolist()], None)


def _steps(step: Step, state: TrainState, batches: Iterator[Any]) -> Iterator[_Trained]:
    losses: list[Tensor] = []
    for batch in batches:
        state, metrics = step(state, batch)
        names = tuple(sorted(name for name, value in metrics.items() if name.startswith("loss/") and value.numel() == 1))
        losses.append(torch.stack([metrics[name].detach().double().reshape(()) for name in names]))
        yield _Trained(state, torch.stack(losses), names)


def _until_updated(training: Iterator[_Trained]) -> tuple[_Trained, int]:
    """Steps until two updates have been applied, or as many as there may be; and how many those are."""
    for number, trained in enumerate(training, 1):
        if int(trained.state.counters.step_count) >= _ENOUGH_UPDATES or number == _MOST_STEPS:
            return trained, number
    raise AssertionError("batches never end")


def _after(training: Iterator[_Trained], num_steps: int) -> _Trained:
    return next(itertools.islice(training, num_steps - 1, None))


def _share(spec: Spec, trust: Sequence[str], num_steps: int, like: _Seen, seconds: float) -> _Seen:
    """What two ranks come to.

    Args:
        like: What one process has seen, for its structure.
        seconds: How long they may take, in all.

    Raises:
        Failure: If one of them fails, or they are not done in time.
    """
    threads = max(torch.get_num_threads() // 2, 1)
    with tempfile.TemporaryDirectory(prefix="purestep-dry-run-") as folder:
        path = os.path.join(folder, "seen")
        text = spec.model_dump_json(by_alias=True, exclude_unset=True)
        arguments = (text, tuple(trust), num_steps, threads, path)
        try:
            run_on_local_processes(2, _train_on_rank, *arguments, seconds=seconds)
        except DistributedError as error:
            raise Failure(f"two processes that share a batch do not come through: {error}") from error
        found: _Seen = load(path, like=like)
        return found


def _train_on_rank(topology: Topology, text: str, trust: Sequence[str], num_steps: int, threads: int, path: str) -> None:
    """What each of the two processes does; rank 0 writes what they have come to."""
    spec = Spec.model_validate_json(text)
    with use_runtime(RuntimeSettings(deterministic=spec.runtime.deterministic, num_threads=threads)):
        pieces = build(spec, trust=trust)
        pieces = pieces._replace(training=shared_training(spec, pieces.training, topology))
        trained = _after(_training(spec, pieces, _places(_count(pieces.batches), topology.rank)), num_steps)
        where = "after the update (a buffer that the model sets by the frames of one rank comes apart: average it over ranks, or drop it)"
        check_same_state(_alike_on_ranks(trained.state), topology, where=where)
        whole = trained._replace(state=gather_shards(trained.state, topology.ranks))
        if topology.rank == 0:
            save(path, whole.seen)


def _alike_on_ranks(state: TrainState) -> dict[str, Any]:
    """The leaves that are to be the same on all ranks. What a transform reports of the gradient that it saw may differ."""
    alike = is_alike(state)
    return {path: leaf for path, leaf in tree.items(state) if path.startswith(("params.", "buffers.")) and alike(path)}


# --- comparing ----------------------------------------------------------------------------------------------------


def _differences(one: _Seen, other: _Seen) -> dict[str, float]:
    """By path of a leaf, its largest difference, relative to the largest element where that is above 1."""
    pairs = zip(tree.items(one), tree.leaves(other), strict=True)
    return {path: _distance(leaf, twin) for (path, leaf), twin in pairs if leaf.numel()}


def _distance(one: Tensor, other: Tensor) -> float:
    wide = torch.complex128 if one.is_complex() else torch.float64
    return float((one.to(wide) - other.to(wide)).abs().max()) / max(float(other.abs().max()), 1.0)


def _verdict(apart: dict[str, float], turned: dict[str, float], whole: _Trained, shared: _Seen, count: int) -> str:
    """What the comparison says, in words.

    Args:
        apart: How far two ranks are from one process.
        turned: How far one process is from itself when the frames of each batch come in the other order; where that is more than
            rounding (dropout, noise, a gradient that is nothing but rounding), no two ways to share a batch can be compared.
        count: Frames of a batch.

    Raises:
        Failure: If the two ranks are further away than rounding can be.
    """
    own, other = (len(_places(count, rank)) for rank in range(2))
    updates = int(whole.state.counters.step_count)
    after = f"after {updates} update{'' if updates == 1 else 's'}"
    loose = [path for path, distance in turned.items() if not distance <= _SHAKY]
    compared = {path: distance for path, distance in apart.items() if path not in loose}
    wrong = {path: distance for path, distance in compared.items() if not distance <= _ROUNDING}
    if wrong:
        worst = max(wrong, key=lambda path: (path != "losses", wrong[path]))
        raise Failure(
            f"ranks with {own} and {other} frames do not come to what one process with {count} does: {after} {worst} is off by "
            f"{wrong[worst]:.1e}, and {len(wrong)} of {len(compared)} leaves by more than {_ROUNDING:.0e}, which is no rounding. "
            + _advice(whole, shared)
        )
    words = f"{own} and {other} frames on two ranks, in float64"
    if not any(path.startswith("params.") for path in compared):
        return f"{words}: both have the same bits {after}; not compared with one process, {_whose(loose, turned)}"
    left_out = (
        f"; {len(loose)} of {len(apart)} leaves left out, among them {loose[0]}: of one process, {_whose(loose, turned)}" if loose else ""
    )
    moved = after if updates else f"after {len(whole.losses)} batches, which the chain lets bring no update"
    return f"{words}: weights and losses are those of one process to {max(compared.values()):.1e} {moved}{left_out}"


def _whose(loose: Sequence[str], turned: dict[str, float]) -> str:
    worst = max(turned[path] for path in loose)
    return (
        f"which itself changes by {worst:.1e} when the frames of a batch come in another order (dropout, noise, or a gradient of "
        "nothing but rounding)"
    )


def _advice(whole: _Trained, shared: _Seen) -> str:
    """What is likely wrong, and what to do; at the first step no weight has moved yet, so what differs there is of the loss."""
    terms = [name for i, name in enumerate(whole.names) if not _distance(shared.losses[0, i], whole.losses[0, i]) <= _ROUNDING]
    if terms:
        named = [name for name in terms if name != "loss/total"] or terms
        return (
            f"{', '.join(named)} differs before any update: a mean is taken over the frames of one rank. Let the term return "
            "ps.Sums(numerator, denominator), which are added over ranks before the one division; a penalty of a hook, and what the model "
            "predicts for a frame, must not depend on the other frames of the batch"
        )
    return (
        "The losses before any update are alike, so it is not they: put transforms behind `accumulate`, since those before it see the "
        "gradient of one rank; then try the spec without its hooks, and see whether the model changes its buffers"
    )


def _note_on_batch_norm(spec: Spec, pieces: Pieces) -> str:
    model = pieces.training.models
    assert isinstance(model, torch.nn.Module)  # a spec has one
    if spec.runtime.distributed.batch_norm == "synchronised" or not any(isinstance(part, _BatchNorm) for part in model.modules()):
        return ""
    return (
        "; tried with batch_norm synchronised: with local, which the run has, batch normalisation takes the statistics of each rank's "
        "share, and weights are not those of one process"
    )
