"""Training that shares each batch among ranks: `data_parallel` makes it out of a training for one process, `shard` cuts a loader."""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

from ..core import tree
from ..core.ranks import Ranks
from ..core.transform import GradientTransform, chain
from ..training import Training
from .batch_norm import Statistics, with_statistics
from .reduction import share_nonfinite, sum_over_ranks
from .sharded_training import ShardedTraining
from .sharding import in_parts, make_plan, norm_of_parts, with_scattered_sum, with_sharded_end
from .topology import Topology

Sharded = Literal["nothing", "optimizer", "gradients", "parameters"]
BeforeTotal = Callable[[tuple[GradientTransform, ...]], tuple[GradientTransform, ...]]


def data_parallel(
    training: Training, topology: Topology, *, batch_norm: Statistics = "local", shard_state: Sharded = "nothing"
) -> Training:
    """The same training, each batch shared among the ranks of a topology.

    Parameters, metrics and counters come out as if one process had seen the whole batch: losses are divided by denominators of all
    ranks, gradients are added, verdicts of gates are those of all. In a world of one the training comes back as it is.

    Args:
        training: For one process.
        topology: From `init`.
        batch_norm: `"local"`: batch normalisation takes the statistics of each rank's own share, and averages the running ones;
            `"synchronised"`: it takes those of the whole batch, exactly, at two collectives for each layer and direction.
        shard_state: What each rank keeps only its part of. `"optimizer"`: the optimizer's state; gradients are added once for each
            update, each rank computes its part of the update, which is then gathered. `"gradients"`: also gradients and the window of
            `accumulate`; each batch's gradient is added to the ranks that own the parts. `"parameters"`: also the parameters, frozen
            ones and averages of them included, which are gathered for the forward pass. These are the stages 1, 2 and 3 of ZeRO.

    Raises:
        ValueError: If a choice is unknown, or gradients are to be combined whose parts are on different ranks.

    Reference:
        Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 5. arXiv:1910.02054
    """
    for name, value, known in (("batch_norm", batch_norm, get_args(Statistics)), ("shard_state", shard_state, get_args(Sharded))):
        if value not in known:
            raise ValueError(f"data_parallel: {name} must be one of {', '.join(known)}, got {value!r}")
    if topology.world_size == 1:
        return training
    ranks = topology.ranks
    models = with_statistics(training.models, ranks, batch_norm)
    if shard_state == "nothing":
        return training.replace(models=models, optimizer=over_ranks(training.optimizer, ranks), ranks=ranks)
    return _sharded(training.replace(models=models), ranks, shard_state)


def _sharded(training: Training, ranks: Ranks, shard_state: Sharded) -> ShardedTraining:
    if shard_state == "parameters" and training._arguments["combine_gradients"] is not None:
        raise ValueError("combine_gradients needs whole gradients, of which each rank has parts; use shard_state='gradients' at most")
    params = training.init(device="meta").params
    trainable = {path: leaf for path, leaf in tree.items(params) if path in training.trainable}
    plan = make_plan(trainable, ranks, whole_params=shard_state != "parameters")
    if shard_state == "optimizer":
        optimizer = with_sharded_end(over_ranks(training.optimizer, ranks), plan)
    else:
        optimizer = in_parts(with_total(training.optimizer, norm_of_parts(plan)), plan)
        if shard_state == "gradients":
            optimizer = with_scattered_sum(optimizer, plan)
    again = functools.partial(_sharded, ranks=ranks, shard_state=shard_state)
    return ShardedTraining(training, optimizer, ranks, shard_params=shard_state == "parameters", again=again)


def over_ranks(optimizer: GradientTransform, ranks: Ranks) -> GradientTransform:
    """An optimizer with the sum over ranks in its place; parts before it see the gradient of one rank."""
    return with_total(optimizer, sum_over_ranks(ranks), lambda parts: _in_step(parts, ranks))


def with_total(optimizer: GradientTransform, total: GradientTransform, before_it: BeforeTotal = tuple) -> GradientTransform:
    """An optimizer with a part in the place where the gradient of the whole update is known.

    That is after the part that scales the loss and after `accumulate`, so that a window is summed once; at the very front if there is
    neither, or if they are hidden in a part that is no chain. Then every later part sees what it would see in one process.
    """
    parts = optimizer.parts or (optimizer,)
    waits = [i for i, part in enumerate(parts) if _holds_back(part)]
    name = optimizer.name if optimizer.parts else "chain"
    if not waits:
        return chain(total, *parts, name=name)
    last = waits[-1]
    before, here, after = parts[:last], parts[last], parts[last + 1 :]
    if here.parts:
        # a chain inside the chain has a place of its own for the sum
        return chain(*before_it(before), with_total(here, total, before_it), *after, name=name)
    gates = before_it((*before, here)) if before or here.name != "accumulate" else (here,)
    return chain(*gates, total, *after, name=name)


def _holds_back(part: GradientTransform) -> bool:
    if part.parts:
        return any(_holds_back(inner) for inner in part.parts)
    return part.name == "accumulate" or part.scale_loss is not None


def _in_step(parts: tuple[GradientTransform, ...], ranks: Ranks) -> tuple[GradientTransform, ...]:
    """Parts that see the gradient of one rank, with what makes those that watch for non-finite values agree."""
    alike = [part._replace(same_on_all_ranks=part.same_on_all_ranks | {"verdict"}) if _sees_alike(part) else part for part in parts]
    return (share_nonfinite(ranks), *alike) if parts else ()


def _sees_alike(gate: GradientTransform) -> bool:
    """Whether a gate looks only at what is alike on all ranks by then: where values are not finite, and the loss."""
    return gate.name in ("dynamic_loss_scale", "skip_nonfinite") or (gate.name == "skip_spikes" and "value" in gate.needs)


def shard(loader: Any, topology: Topology) -> Any:
    """The loader of one rank: its part of each batch of a loader for one process.

    All ranks together see the same samples in the same batches as one process would. Samples that fill up the end of an epoch have
    weight 0 in the batch's mask. Where a plan other than an even batch size says what a batch holds, each rank gets such batches, and
    the batch of all ranks is that much larger.

    Args:
        loader: A `ps.Loader` with the batch size of all ranks together.
        topology: From `init`.

    Raises:
        ValueError: If the batch size is no multiple of the world size.
    """
    plan, world = loader.plan, topology.world_size
    place = {"collate": loader.collate, "rank": topology.rank, "world": world}
    if not hasattr(plan, "batch_size"):
        return type(loader)(loader.dataset, plan, **place)
    if plan.batch_size % world:
        raise ValueError(f"shard: a batch of {plan.batch_size} samples cannot be cut among {world} ranks; use a multiple of {world}")
    order = {"seed": plan.seed, "shuffle": plan.shuffle, "last": plan.last}
    return type(loader)(loader.dataset, plan.batch_size // world, **order, **place)
