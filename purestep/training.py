"""Training of modules: models, loss, optimizer and hooks become three pure functions, `init`, `step` and `evaluate`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .core import tree
from .core.by_terms import CombineGradients
from .core.epoch import build_end_epoch
from .core.grad import ENGINES, Engine
from .core.hook import Hook
from .core.loss import Composable, ComposedLoss, Sums, as_loss, read_targets
from .core.module import Models, Skeleton, frozen_buffers, frozen_by_user, make_layout, read
from .core.objective import Objective, cut_batch, own_copy
from .core.randomness import KeyedRandomness
from .core.ranks import ALONE, Ranks
from .core.recompute import Recomputable
from .core.state import TrainState, check_not_consumed
from .core.step import Step, build_step, init_state
from .core.transform import GradientTransform, chain, describe_mistake
from .core.tree import Tree
from .errors import PatternError

Precision = Literal["fp32", "bf16", "fp16"]
_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    """Models, loss, optimizer and hooks, as pure functions of a state.

    Nothing of it changes after construction; the modules given are read at `init` and never touched.

    Args:
        models: One module, or several by name.
        loss: A term, a sum of terms, or a function `loss(predictions, batch) -> 0-d mean`.
        optimizer: A chain, or any other gradient transform, of which a chain is made.
        hooks: Pure hooks, run inside the step in the order given.
        forward: `forward(models, batch) -> predictions`, a mapping; `models` is the module, or the mapping of modules, with the
            state's parameters in place. By default `models(batch)`.
        targets: `targets(loss, predictions, batch, *, target_keys) -> mapping`; by default fields of the batch.
        trainable: Path patterns of the parameters to train; the rest, and all with `requires_grad=False`, are frozen: bitwise
            constant, without optimizer state, their BatchNorm statistics too.
        precision: `"fp32"` leaves dtypes alone; `"bf16"` and `"fp16"` run forward and loss under autocast.
        microbatches: Cut every batch into so many parts, one after the other, with the result of the whole.
        grad_engine: `"autograd"`, `"func"`, or by where the step runs.
        ranks: Who else shares each batch; `ps.distributed.data_parallel` sets it.
        combine_gradients: `fn(gradients, weights) -> gradient`, from the gradients of the terms, one backward each, and their weights;
            `losses/gradient_surgery.py` has some. By default the gradient is that of the weighted sum.

    Raises:
        PatternError: If a pattern of `trainable` matches nothing.
        ModuleError: If a module cannot be called as a function.
        ValueError: If nothing is trainable, or a name is unknown.
    """

    init: Callable[..., TrainState]
    step: Step
    evaluate: Callable[..., tuple[Any, dict[str, Sums]]]
    end_epoch: Callable[[TrainState], TrainState]
    """`ps.end_epoch`, which also emits the window that `accumulate(last="partial")` has open."""

    def __init__(
        self,
        models: Models,
        *,
        loss: Composable | Callable[[Any, Any], Any],
        optimizer: GradientTransform,
        hooks: Sequence[Hook] = (),
        forward: Callable[[Any, Any], Any] | None = None,
        targets: Callable[..., Mapping[str, Any]] | None = None,
        trainable: str | Sequence[str] = ("*",),
        precision: Precision = "fp32",
        microbatches: int = 1,
        grad_engine: Engine = "auto",
        ranks: Ranks = ALONE,
        combine_gradients: CombineGradients | None = None,
    ):
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        optimizer = _as_chain(optimizer)
        _check_choice("precision", precision, tuple(_AUTOCAST))
        _check_choice("grad_engine", grad_engine, ENGINES)
        _check_precision(precision, optimizer)
        layout = make_layout(models)
        names = _trainable_names(models, layout, trainable)
        frozen = frozen_buffers(models, layout, names)
        self.loss: ComposedLoss = as_loss(loss)
        """The loss as a weighted sum of terms."""
        self.hooks = tuple(hooks)
        self.optimizer = optimizer
        self.models = models
        """The modules given, as they are."""
        self.ranks = ranks
        """Who else shares each batch."""
        self.trainable: frozenset[str] = names
        """Dotted names of the parameters that are trained."""
        program = _Program(
            Skeleton(models, layout, training=True, frozen=frozen),
            Skeleton(models, layout, training=False),
            self.loss,
            _with_advice(forward or _call_model),
            targets or read_targets,
            names,
            layout.single,
            _AUTOCAST[precision],
            ranks,
            combine_gradients,
        )
        self.step = build_step(program.objective(), optimizer, hooks, microbatches, grad_engine)
        self.end_epoch = build_end_epoch(program.objective(), optimizer, hooks)
        self.evaluate = program.evaluate
        self._program = program

        def init(seed: int = 0, device: torch.device | str | None = None) -> TrainState:
            """The state before the first batch: weights as the modules hold them now, copied to `device`."""
            params = read(models, layout, "_parameters", device)
            buffers = read(models, layout, "_buffers", device)
            state = init_state(params, optimizer, hooks, seed, buffers=buffers, trainable=program.split(params)[0])
            return dataclasses.replace(state, aliases=layout.aliases)

        self.init = init

    def replace(self, **changes: Any) -> "Training":
        """The same training with other arguments, named as in the constructor."""
        return Training(**(self._arguments | changes))

    def whole_params(self, params: Tree) -> Tree:
        """Parameters as `evaluate` can share them among batches; where each rank keeps its part, the whole, gathered from all ranks."""
        return params

    def evaluator(
        self, *, forward: Callable[[Any, Any], Any] | None = None, loss: Composable | Callable[[Any, Any], Any] | None = None
    ) -> Callable[..., tuple[Any, dict[str, Sums]]]:
        """An `evaluate` with another forward pass or loss."""
        changes: dict[str, Any] = {} if forward is None else {"forward_fn": forward}
        changes |= {} if loss is None else {"loss": as_loss(loss)}
        return dataclasses.replace(self._program, **changes).evaluate


def _as_chain(optimizer: Any) -> GradientTransform:
    """A chain, so that leaves have the same names alone and on several ranks, where more parts are put into the chain."""
    if not isinstance(optimizer, GradientTransform):
        raise TypeError(f"optimizer: expected a gradient transform such as ps.adamw(1e-3), got {describe_mistake(optimizer)}")
    return optimizer if optimizer.parts else chain(optimizer)


def _check_choice(what: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what}: unknown value {value!r} (known: {', '.join(known)})")


def _check_precision(precision: str, optimizer: GradientTransform) -> None:
    if precision == "fp16" and optimizer.scale_loss is None:
        raise ValueError("precision='fp16' needs ps.dynamic_loss_scale() first in the chain, or small gradients vanish")


def _call_model(models: Any, batch: Any) -> Any:
    if isinstance(models, dict):
        raise TypeError(
            f"Training with several models ({', '.join(models)}) needs forward=, a function of (models, batch) that says how they "
            "work together"
        )
    return models(batch)


def _with_advice(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same forward pass; an error that comes of what the model is given also says what to give it."""

    def call(models: Any, batch: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(models, batch)
        try:
            return forward(models, batch)
        except (TypeError, AttributeError) as error:
            arrays = [path for path, leaf in tree.items(batch) if not isinstance(leaf, Tensor) and hasattr(leaf, "__array__")]
            if arrays:
                error.add_note(f"the batch holds arrays that are no tensors ({', '.join(arrays)}); convert them with torch.from_numpy")
            elif forward is _call_model and isinstance(batch, Mapping):
                kind, keys = type(batch).__name__, ", ".join(map(repr, batch))
                error.add_note(
                    f"without forward=, the module is called with the whole batch, a {kind} with {keys}; say what it "
                    "gets and returns: Training(..., forward=lambda model, batch: {'y': model(batch['x'])})"
                )
            raise

    return call


def _trainable_names(models: Models, layout: Any, patterns: str | Sequence[str]) -> frozenset[str]:
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    leaves = tree.paths(read(models, layout, "_parameters", "meta"))
    aliases = dict(layout.aliases)
    names = [*leaves, *(name for name in aliases if aliases[name] in leaves)]
    hits = tree.first_matches(patterns, names, "trainable pattern")
    chosen = {aliases.get(name, name) for name, hit in zip(names, hits, strict=True) if hit is not None}
    chosen -= frozen_by_user(models, layout)
    if not chosen:
        raise PatternError("trainable: no parameter is left to train; all that the patterns match have requires_grad=False")
    return frozenset(chosen)


@dataclasses.dataclass(frozen=True)
class _Program:
    """How modules make a loss out of a batch; a bundle of pure functions over fixed parts."""

    train: Skeleton
    eval: Skeleton
    loss: ComposedLoss
    forward_fn: Callable[[Any, Any], Any]
    targets_fn: Callable[..., Mapping[str, Any]]
    trainable: frozenset[str]
    single: bool
    autocast: torch.dtype | None
    ranks: Ranks
    combine: CombineGradients | None

    def objective(self) -> Objective:
        return Objective(
            split=self.split,
            join=self.join,
            forward=self.forward,
            targets=self.targets,
            sums=self.loss.sums,
            weights=lambda counters: self.loss.weights(counters.step_count, counters.epoch_count),
            cut=cut_batch,
            merge_buffers=self.join,
            context=self.context,
            ranks=self.ranks,
            combine=self.combine,
        )

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        if self.single:
            chosen = {name: p for name, p in params.items() if name in self.trainable}
            return chosen, {name: p for name, p in params.items() if name not in self.trainable}
        chosen = {model: {n: p for n, p in inside.items() if f"{model}.{n}" in self.trainable} for model, inside in params.items()}
        rest = {model: {n: p for n, p in inside.items() if f"{model}.{n}" not in self.trainable} for model, inside in params.items()}
        return {model: inside for model, inside in chosen.items() if inside}, rest

    def join(self, one: Tree, other: Tree) -> Tree:
        """Two dicts of tensors, or of dicts of tensors, as one; the second wins."""
        if self.single:
            return {**one, **other}
        return {model: {**one.get(model, {}), **other.get(model, {})} for model in other | one}

    def context(self, params: Tree) -> contextlib.AbstractContextManager:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(tree.leaves(params)[0].device.type, self.autocast)

    def forward(self, params: Tree, buffers: Tree, batch: Any, make_key: Callable[[], Tensor]) -> tuple[Any, Tree]:
        def replay() -> Callable[[], contextlib.AbstractContextManager]:
            return functools.partial(_replay, self.train, params, buffers, make_key, mode.draws)

        with KeyedRandomness(make_key) as mode, Recomputable(replay):
            return self.train.call(self.forward_fn, params, buffers, batch)

    def targets(self, predictions: Any, batch: Any) -> Mapping[str, Any]:
        return self.targets_fn(self.loss, predictions, batch, target_keys=self.loss.target_keys)

    def evaluate(self, state: TrainState, batch: Any, params: Tree = None, buffers: Tree = None) -> tuple[Any, dict[str, Sums]]:
        """Run the model in eval mode: dropout off, running statistics; forces are available, no graph is kept.

        Args:
            state: Gives parameters and buffers where none are given; nothing of it changes.
            batch: As for `step`.
            params: For instance averaged ones.
            buffers: Likewise.

        Returns:
            The predictions, and by term the sums from which means over many batches come out exactly.
        """
        check_not_consumed(state, "evaluate")
        params = state.params if params is None else params
        buffers = state.buffers if buffers is None else buffers
        differentiable = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with differentiable, torch.enable_grad(), self.context(params), KeyedRandomness(_no_randomness):  # potentials differentiate
            batch = own_copy(batch)
            predictions, _ = self.eval.call(self.forward_fn, params, buffers, batch)
            sums = self.loss.sums(predictions, self.targets(predictions, batch), batch)
        return tree.map(_detach, (predictions, sums))


@contextlib.contextmanager
def _replay(skeleton: Skeleton, params: Tree, buffers: Tree, make_key: Callable[[], Tensor], draws: int) -> Any:
    """What a checkpointed region needs to be recomputed: its parameters, and its random draws once more."""
    with skeleton.bound(params, buffers), KeyedRandomness(make_key, draws):
        yield


def _detach(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _no_randomness() -> Tensor:
    return torch.zeros((), dtype=torch.int64)
