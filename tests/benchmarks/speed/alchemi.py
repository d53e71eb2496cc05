"""The NVIDIA ALCHEMI toolkit's `TrainingStrategy`, with its own EMA hook, and clipping and accumulation as its documentation writes them.

What it declares asks for CUDA; on a CPU it is installed without, and what it imports by hand:

    pip install --no-deps nvalchemi-toolkit nvalchemi-toolkit-ops nvidia-physicsnemo
    pip install loguru plum-dispatch "plotext<6" tensordict periodictable==2.0.2 warp-lang requests treelib s3fs termcolor
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .feeding import ENDLESS, in_background
from .workloads import EMA_DECAY, LEARNING_RATE, MAX_NORM, WEIGHT_DECAY, Run, Workload, endless, on_device


class _Batch:
    """A batch as the strategy handles it: it is moved to the device, and asked for targets."""

    def __init__(self, content: Any):
        self.content = content
        self.target = torch.zeros(())

    def to(self, device: Any, non_blocking: bool = False) -> "_Batch":
        return _Batch(on_device(self.content))


def _update_hooks(accumulate: int) -> list[Any]:
    """Clipping before the optimizer's step, and a window of batches where one is asked for."""
    from nvalchemi.training import EMAHook, TrainingStage
    from nvalchemi.training.hooks import TrainingUpdateHook

    class Clip(TrainingUpdateHook):
        priority = 30

        def __call__(self, ctx: Any, stage: Any, will_skip: bool) -> tuple[bool, Tensor | None]:
            if stage is TrainingStage.DO_OPTIMIZER_STEP and not will_skip:
                for optimizer in ctx.optimizers:
                    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], MAX_NORM)
            return True, ctx.loss

    class Accumulate(TrainingUpdateHook):
        priority = 10

        def __call__(self, ctx: Any, stage: Any, will_skip: bool) -> tuple[bool, Tensor | None]:
            place = ctx.batch_count % accumulate
            if stage is TrainingStage.BEFORE_BATCH:
                return place == 0, ctx.loss
            if stage is TrainingStage.DO_BACKWARD:
                return True, ctx.loss / accumulate
            if stage is TrainingStage.DO_OPTIMIZER_STEP:
                return place == accumulate - 1, ctx.loss
            return True, ctx.loss

    return [*([Accumulate()] if accumulate > 1 else []), Clip(), EMAHook(model_key="main", decay=EMA_DECAY)]


def _loss_as_it_is() -> Any:
    """A term of the toolkit that is the prediction itself: the workload's own loss."""
    from nvalchemi.training import BaseLossFunction

    class AsItIs(BaseLossFunction):
        prediction_key, target_key = "loss", "target"

        def compute_residual(self, pred: Tensor, target: Tensor, valid: Tensor) -> Tensor:
            return pred

        def reduce(self, residual: Tensor, valid: Tensor, ctx: Any, **kwargs: Any) -> Tensor:
            return residual

    return AsItIs()


def _wrapped(model: nn.Module) -> Any:
    """The model as the toolkit wants one; what it asks for beside parameters plays no part in training."""
    from nvalchemi.models.base import BaseModelMixin, ModelConfig

    class Wrapped(nn.Module, BaseModelMixin):
        embedding_shapes: ClassVar[dict[str, tuple[int, ...]]] = {}

        def __init__(self) -> None:
            super().__init__()
            self.model, self.model_config = model, ModelConfig(outputs=frozenset({"loss"}))

        def compute_embeddings(self, data: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    return Wrapped()


def alchemi_ema(workload: Workload) -> Run:
    """`TrainingStrategy.run` on endless batches."""
    from nvalchemi.training import OptimizerConfig, TrainingStrategy

    last: list[Tensor] = []

    def forward(wrapped: Any, batch: _Batch) -> dict[str, Tensor]:
        loss = workload.loss(wrapped.model, batch.content)
        last[:] = [loss.detach()]
        return {"loss": loss}

    adamw = OptimizerConfig(optimizer_cls=torch.optim.AdamW, optimizer_kwargs={"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY})
    strategy = TrainingStrategy(
        models=_wrapped(workload.model()),
        optimizer_configs=adamw,
        num_steps=ENDLESS,
        hooks=_update_hooks(workload.accumulate),
        training_fn=forward,
        loss_fn=_loss_as_it_is(),
        devices=[torch.device("cpu")],
    )
    advance = in_background(strategy.run, map(_Batch, endless(workload)))

    def run(steps: int) -> float:
        advance(steps)
        return float(last[0])

    return run
