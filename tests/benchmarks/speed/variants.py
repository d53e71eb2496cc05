"""How it is trained: one function a variant, from a workload to a callable that runs steps and returns the last loss.

Peers are optional: a variant whose package is missing says so and is left out of the table.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .workloads import LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Workload

Run = Callable[[int], float]


def _endless(workload: Workload) -> Iterator[Any]:
    return itertools.cycle(workload.batches())


def _imperative(workload: Workload, *, fused: bool, compiled: bool) -> Run:
    model = workload.model()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=fused)
    batches, numbers = _endless(workload), itertools.count(1)

    def run(steps: int) -> float:
        loss = None
        for _ in range(steps):
            loss = workload.loss(called, next(batches))
            (loss / workload.accumulate).backward()
            if next(numbers) % workload.accumulate == 0:
                if workload.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        return float(loss.detach())

    return run


def _purestep(workload: Workload, *, hooks: int = 0, **compile_options: Any) -> Run:
    import purestep as ps

    parts = [ps.accumulate(workload.accumulate)] if workload.accumulate > 1 else []
    parts += [ps.clip_by_global_norm(MAX_NORM)] if workload.clip else []
    optimizer = ps.chain(*parts, ps.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    tr = ps.Training(
        workload.model(),
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": workload.loss(model, batch)},
        optimizer=optimizer,
        hooks=_observers()[:hooks],
    )
    step = ps.compile(tr.step, **compile_options) if compile_options else tr.step
    state, batches = tr.init(), _endless(workload)

    def run(steps: int) -> float:
        nonlocal state
        metrics: dict[str, Tensor] = {}
        for _ in range(steps):
            state, metrics = (step.at(state) if hasattr(step, "at") else step)(state, next(batches))
        return float(metrics["loss/total"])

    return run


def _observers() -> list[Any]:
    """Ten observing hooks that ship."""
    from purestep import hooks

    kinds = (hooks.gradient_norm, hooks.layer_gradient_norms, hooks.update_ratios, hooks.nonfinite_location, hooks.loss_statistics)
    first = [make() for make in kinds]
    return first + [hook._replace(name=f"{hook.name}_again") for hook in first]


def _jax(workload: Workload) -> Run:
    import jax
    import jax.numpy as jnp
    import optax

    if type(workload.model()[0]).__name__ != "Linear" or workload.accumulate > 1:
        raise ImportError("written for the tiny workload only")
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in workload.model().named_parameters()}
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY))

    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch[0] @ params["0.weight"].T + params["0.bias"])
        return jnp.mean((hidden @ params["2.weight"].T + params["2.bias"] - batch[1]) ** 2)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    state = [params, optimizer.init(params)]
    batches = itertools.cycle([tuple(jnp.asarray(x.numpy()) for x in batch) for batch in workload.batches()])

    def run(steps: int) -> float:
        value = None
        for _ in range(steps):
            state[0], state[1], value = compiled(state[0], state[1], next(batches))
        return float(value)

    return run


def _lightning(workload: Workload) -> Run:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = workload.model()
            self.last = torch.zeros(())

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = workload.loss(self.model, batch)
            self.last = loss.detach()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    module, batches = Module(), _endless(workload)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=MAX_NORM if workload.clip else None,
        accumulate_grad_batches=workload.accumulate,
    )

    def run(steps: int) -> float:
        trainer.fit_loop.epoch_loop.max_steps = trainer.global_step + steps // workload.accumulate
        trainer.fit(module, train_dataloaders=itertools.islice(batches, steps))
        return float(module.last)

    return run


def _accelerate(workload: Workload) -> Run:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=workload.accumulate)
    model = workload.model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    batches = _endless(workload)

    def run(steps: int) -> float:
        loss = None
        for _ in range(steps):
            with accelerator.accumulate(model):
                loss = workload.loss(model, next(batches))
                accelerator.backward(loss)
                if workload.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        return float(loss.detach())

    return run


VARIANTS: dict[str, Callable[[Workload], Run]] = {
    "eager": lambda workload: _imperative(workload, fused=False, compiled=False),
    "eager_fused": lambda workload: _imperative(workload, fused=True, compiled=False),
    "compiled_model": lambda workload: _imperative(workload, fused=True, compiled=True),
    "lightning": _lightning,
    "accelerate": _accelerate,
    "jax": _jax,
    "purestep_eager": _purestep,
    "purestep_dynamo": lambda workload: _purestep(workload, capture="dynamo"),
    "purestep": lambda workload: _purestep(workload, donate=False),
    "purestep_donated": lambda workload: _purestep(workload, donate=True),
    "purestep_ten_hooks": lambda workload: _purestep(workload, hooks=10, donate=True),
}
