"""A training whose state is in parts: `init` cuts what it begins with; `step` and `evaluate` gather parameters where they are in parts.

Parameters are gathered inside the differentiated function, so their gradients come back added over ranks and cut. Hooks see parts; only
one that may add to the loss sees whole parameters, so that a penalty counts once.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.epoch import build_end_epoch
from ..core.hook import Hook, Stage, StepContext
from ..core.loss import Composable
from ..core.ranks import Ranks
from ..core.state import TrainState
from ..core.step import build_step
from ..core.transform import children, rebuild
from ..core.tree import Tree
from ..training import Training
from .parts import Cut, cut_of, gather_differentiably, gather_parts, part_of
from .reduction import SumOverRanksState, write_table
from .sharding import InParts, grown, longer


class ShardedTraining(Training):
    """A training of which each rank keeps a part of the state.

    Args:
        whole: The training for one process.
        optimizer: Its optimizer, for parts.
        ranks: Who else shares each batch.
        shard_params: Whether parameters, and what hooks keep of their form, are in parts too.
        again: How to shard another training in the same way.
    """

    def __init__(
        self, whole: Training, optimizer: InParts, ranks: Ranks, *, shard_params: bool, again: Callable[[Training], "ShardedTraining"]
    ):
        arguments = {**whole._arguments, "optimizer": optimizer.transform, "ranks": ranks}
        super().__init__(**arguments)
        cuts = {f"opt_state.{path}": cut for path, cut in optimizer.cuts.items()}
        cuts |= _cuts_of_params(self.init(device="meta"), self.hooks, ranks) if shard_params else {}
        self._whole, self._again, self._ranks = whole, again, ranks
        self._cuts = {path.removeprefix("params."): cut for path, cut in cuts.items() if path.startswith("params.")}
        if shard_params:
            self._use_whole_params(arguments["microbatches"], arguments["grad_engine"])
        init_whole = self.init

        def init(seed: int = 0, device: torch.device | str | None = None) -> TrainState:
            """This rank's part of the state before the first batch; of the device `"meta"`, its shapes."""
            return cut_state(init_whole(seed, device), cuts, ranks)

        self.init = init

    def replace(self, **changes: Any) -> Training:
        """The same training with other arguments, sharded likewise."""
        return self._again(self._whole.replace(**changes))

    def evaluator(
        self, *, forward: Callable[[Any, Any], Any] | None = None, loss: Composable | Callable[[Any, Any], Any] | None = None
    ) -> Callable[..., Any]:
        """An `evaluate` with another forward pass or loss."""
        return self._given_whole_params(super().evaluator(forward=forward, loss=loss))

    def whole_params(self, params: Tree) -> Tree:
        """Whole parameters, which hand their gradients on to the parts; every rank calls this. Whole ones come back as they are."""
        return self._gathered(params, set())

    def _gathered(self, params: Tree, reached: set[int]) -> Tree:
        items = tree.items(params)
        places = [self._cuts.get(path) for path, _ in items]
        if any(cut and leaf.shape[cut.axis] == cut.size for (_, leaf), cut in zip(items, places, strict=True)):
            return params
        whole = [leaf for _, leaf in items]
        learns = [path in self.trainable for path, _ in items]
        for gather, wanted in ((functools.partial(gather_differentiably, reached=reached), True), (gather_parts, False)):
            numbers = [i for i, learning in enumerate(learns) if learning is wanted]
            found = gather([whole[i] for i in numbers], [places[i] for i in numbers], self._ranks)
            for i, leaf in zip(numbers, found, strict=True):
                whole[i] = leaf
        return tree.unflatten(tree.structure(params), whole)

    def _use_whole_params(self, microbatches: int, engine: Any) -> None:
        plain = self._program.objective()
        learning = [path for path in tree.paths(self.init(device="meta").params) if path in self.trainable]
        reached: set[int] = set()  # leaves that the latest backward pass has come to: a fact of the program, found as it is traced

        def forward(params: Tree, *rest: Any) -> Any:
            reached.clear()
            return plain.forward(self._gathered(params, reached), *rest)

        def unreached(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(path for number, path in enumerate(learning) if number not in reached)

        objective = plain._replace(forward=forward, unreached=unreached)
        gathered = functools.partial(self._gathered, reached=reached)
        hooks = [_shown_whole_params(hook, gathered) if Stage.AFTER_LOSS in hook.stages else hook for hook in self.hooks]
        self.step = build_step(objective, self.optimizer, hooks, microbatches, engine)
        self.end_epoch = build_end_epoch(objective, self.optimizer, hooks)
        self.evaluate = self._given_whole_params(self.evaluate)

    def _given_whole_params(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def given(state: TrainState, batch: Any, params: Tree = None, buffers: Tree = None) -> Any:
            return evaluate(state, batch, self.whole_params(state.params if params is None else params), buffers)

        return given


def cut_state(state: TrainState, cuts: Mapping[str, Cut], ranks: Ranks) -> TrainState:
    """This rank's parts of a whole state, in memory of their own."""

    def cut(path: str, leaf: Any) -> Any:
        place = cuts.get(path)
        return part_of(leaf, place, ranks).clone(memory_format=torch.contiguous_format) if place else leaf

    parts = tree.map_with_path(cut, state)
    return dataclasses.replace(parts, opt_state=_with_table(parts.opt_state, write_table(cuts)))


def _with_table(node: Any, table: str) -> Any:
    if isinstance(node, SumOverRanksState):
        return dataclasses.replace(node, parts=table)
    return rebuild(node, {key: child if isinstance(child, Tensor) else _with_table(child, table) for key, child in children(node)})


def _cuts_of_params(meta: TrainState, hooks: tuple[Hook, ...], ranks: Ranks) -> dict[str, Cut]:
    """Where parameters are cut, and what hooks keep of their form."""
    cuts = [cut_of(leaf, ranks.world_size) for leaf in tree.leaves(meta.params)]
    found = {f"params.{path}": cut for path, cut in zip(tree.paths(meta.params), cuts, strict=True) if cut}
    bare = dataclasses.replace(meta, hook_state={})
    grew = dataclasses.replace(bare, params=longer(meta.params, cuts))
    for hook in hooks:
        kept = grown(hook.init(bare), hook.init(grew))
        found |= {f"hook_state.{hook.name}.{path}": cut for path, cut in kept.items()}
    return found


def _shown_whole_params(hook: Hook, whole_params: Callable[[Tree], Tree]) -> Hook:
    """The hook, which sees whole parameters where it may add to the loss."""

    def update(state: Any, ctx: StepContext) -> tuple[Any, StepContext]:
        if ctx.stage is not Stage.AFTER_LOSS:
            return hook.update(state, ctx)
        shown = ctx.replace(params=whole_params(ctx.params))
        state, after = hook.update(state, shown)
        return state, after.replace(params=ctx.params) if after.params is shown.params else after

    return hook._replace(update=update)
