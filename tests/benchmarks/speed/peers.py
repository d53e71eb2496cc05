"""Other trainers of torch modules, doing the same work: the same loss, clipping by the global norm, AdamW, and nothing else.

Logging, checkpoints and progress bars are off. Trainers that own their loop run in the background (`feeding.py`).
"""

from typing import Any

import torch
from torch import Tensor

from .feeding import in_background
from .workloads import LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Run, Workload, endless, on_device


def lightning(workload: Workload) -> Run:
    """Lightning's `Trainer.fit`."""
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
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

    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=MAX_NORM,
        accumulate_grad_batches=workload.accumulate,
    )
    advance = in_background(lambda feed: trainer.fit(module, train_dataloaders=feed), endless(workload))

    def run(steps: int) -> float:
        advance(steps)
        return float(module.last)

    return run


def accelerate(workload: Workload) -> Run:
    """A loop of one's own around an `Accelerator`."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=workload.accumulate)
    model = workload.model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    batches = endless(workload)

    def run(steps: int) -> float:
        loss = None
        for _ in range(steps):
            with accelerator.accumulate(model):
                loss = workload.loss(model, on_device(next(batches)))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        return float(loss.detach())

    return run


def ignite(workload: Workload) -> Run:
    """Ignite's `Engine` around a plain step."""
    from ignite.engine import Engine

    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    last: list[Tensor] = []

    def step(engine: Any, batch: Any) -> Tensor:
        loss = workload.loss(model, on_device(batch))
        (loss / workload.accumulate).backward()
        if engine.state.iteration % workload.accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        last[:] = [loss.detach()]
        return last[0]

    advance = in_background(Engine(step).run, endless(workload))

    def run(steps: int) -> float:
        advance(steps)
        return float(last[0])

    return run


def _torchopt_chain(workload: Workload) -> Any:
    import torchopt

    if workload.accumulate > 1:
        raise NotImplementedError("torchopt has no accumulation of gradients")
    # the trainers above skip what has no gradient; here every leaf must have one
    return torchopt.chain(torchopt.clip_grad_norm(MAX_NORM), torchopt.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY))


def torchopt(workload: Workload) -> Run:
    """A functional optimizer on parameters that autograd differentiates."""
    from torchopt import apply_updates

    model, optimizer, batches = workload.model(), _torchopt_chain(workload), endless(workload)
    params = dict(model.named_parameters())
    opt_state = optimizer.init(params)

    def run(steps: int) -> float:
        nonlocal opt_state
        loss = None
        for _ in range(steps):
            loss = workload.loss(model, on_device(next(batches)))
            grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
            updates, opt_state = optimizer.update(grads, opt_state, params=params, inplace=True)
            apply_updates(params, updates, inplace=True)
        return float(loss.detach())

    return run


def posteriors(workload: Workload) -> Run:
    """A transform of posteriors around the same optimizer; its gradient is `torch.func`'s."""
    from posteriors.torchopt import build

    model, batches = workload.model(), endless(workload)

    class Bound(torch.nn.Module):
        """Loss and model as one module, since `functional_call` wants one."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> Tensor:
            return workload.loss(self.model, batch)

    bound = Bound()

    def loss(params: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(bound, params, (batch,)), torch.zeros(())

    transform = build(loss, _torchopt_chain(workload))
    state = transform.init({name: p.detach().clone() for name, p in bound.named_parameters()})

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, _ = transform.update(state, on_device(next(batches)))
        return float(state.loss)

    return run
