"""How it is trained: one function a variant, from a workload to a callable that runs steps and returns the last loss.

Here are plain loops and purestep; other trainers are in `peers.py`, `alchemi.py` and `jax_peers.py`.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from . import alchemi, jax_peers, peers
from .workloads import EMA_DECAY, LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Run, Workload, endless, on_device


def _imperative(workload: Workload, *, fused: bool, compiled: bool = False, ema: bool = False) -> Run:
    model = workload.model()
    called = torch.compile(model) if compiled else model
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY)) if ema else None
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=fused)
    batches, numbers = endless(workload), count(1)

    def run(steps: int) -> float:
        loss = None
        for _ in range(steps):
            loss = workload.loss(called, on_device(next(batches)))
            (loss / workload.accumulate).backward()
            if next(numbers) % workload.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
                if averaged is not None:
                    averaged.update_parameters(model)
        return float(loss.detach())

    return run


def _purestep(workload: Workload, *, hooks: Callable[[], list[Any]] = list, **compile_options: Any) -> Run:
    import purestep as ps

    parts = [ps.accumulate(workload.accumulate)] if workload.accumulate > 1 else []
    optimizer = ps.chain(*parts, ps.clip_by_global_norm(MAX_NORM), ps.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    training = ps.Training(
        workload.model(),
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": workload.loss(model, batch)},
        optimizer=optimizer,
        hooks=hooks(),
    )
    # an eager step asks itself which form a state needs; a compiled one does so by itself
    step = ps.compile(training.step, **compile_options) if compile_options else lambda state, batch: training.step.at(state)(state, batch)
    state, batches = training.init(), endless(workload)

    def run(steps: int) -> float:
        nonlocal state
        metrics: dict[str, Tensor] = {}
        for _ in range(steps):
            state, metrics = step(state, on_device(next(batches)))
        return float(metrics["loss/total"])

    return run


def _observers() -> list[Any]:
    """Ten observing hooks that ship, each kind twice, with metrics of its own: 24 scalars beside the step's 8 on the tiny workload."""
    from purestep import hooks

    kinds = (hooks.gradient_norm, hooks.layer_gradient_norms, hooks.update_ratios, hooks.nonfinite_location, hooks.loss_statistics)
    return [make(name=f"{make.__name__}_{number}") for number in (1, 2) for make in kinds]


def _ema() -> list[Any]:
    from purestep import hooks

    return [hooks.ema(EMA_DECAY)]


VARIANTS: dict[str, Callable[[Workload], Run]] = {
    "eager": lambda workload: _imperative(workload, fused=False),
    "eager_fused": lambda workload: _imperative(workload, fused=True),
    "eager_fused_ema": lambda workload: _imperative(workload, fused=True, ema=True),
    "compiled_model": lambda workload: _imperative(workload, fused=True, compiled=True),
    "lightning": peers.lightning,
    "accelerate": peers.accelerate,
    "ignite": peers.ignite,
    "torchopt": peers.torchopt,
    "posteriors": peers.posteriors,
    "alchemi_ema": alchemi.alchemi_ema,
    "jax": jax_peers.jax_and_optax,
    "equinox": jax_peers.equinox,
    "purestep_eager": _purestep,
    "purestep_dynamo": lambda workload: _purestep(workload, capture="dynamo"),
    "purestep": lambda workload: _purestep(workload, donate=False),
    "purestep_donated": lambda workload: _purestep(workload, donate=True),
    "purestep_ema": lambda workload: _purestep(workload, hooks=_ema, donate=True),
    "purestep_ten_hooks": lambda workload: _purestep(workload, hooks=_observers, donate=True),
}
