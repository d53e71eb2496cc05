"""Write a hook of your own: the mean error of each class along training, as a part of the pure step.

A hook is a name, the stages it runs at, and two pure functions. What it remembers is a leaf of the training state, so it is saved,
resumed, compiled and mapped with everything else. What it reports is a metric. `ps.testing.check_hook` says whether it keeps the laws.
"""

import torch
from torch import nn

import purestep as ps


def class_errors(num_classes: int, decay: float = 0.9, name: str = "class_error") -> ps.Hook:
    """Report a running mean of the fraction of wrong predictions by class, as metrics `<name>/<class>`."""

    def init(state: ps.TrainState) -> torch.Tensor:
        return torch.full((num_classes,), 0.5, device=state.seed.device)

    def update(mean: torch.Tensor, ctx: ps.StepContext) -> tuple[torch.Tensor, ps.StepContext]:
        labels = nn.functional.one_hot(ctx.targets["labels"], num_classes).to(mean.dtype)
        wrong = (ctx.predictions["logits"].argmax(-1) != ctx.targets["labels"]).to(mean.dtype)
        count = labels.sum(0)
        now = torch.where(count > 0, (labels * wrong.unsqueeze(-1)).sum(0) / count.clamp(min=1), mean)
        new = decay * mean + (1 - decay) * now
        return new, ctx.replace(metrics={**ctx.metrics, **{f"{name}/{i}": new[i].clone() for i in range(num_classes)}})

    return ps.Hook(name, frozenset({ps.Stage.AFTER_LOSS}), init, update)


def blobs(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Three classes, of which the last two overlap."""
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=gen)
    centres = torch.tensor([[-4.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    return {"x": centres[labels] + torch.randn(count, 2, generator=gen), "labels": labels}


def main() -> dict[str, float]:
    torch.manual_seed(0)
    training = ps.Training(
        nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)),
        loss=ps.CrossEntropyLoss(),
        optimizer=ps.adamw(1e-2),
        hooks=(class_errors(3),),
        forward=lambda model, batch: {"logits": model(batch["x"])},
    )
    without = training.replace(hooks=())
    data = [blobs(64, seed) for seed in range(10)]
    state, plain = (ps.fit(tr, data, num_steps=200).state for tr in (training, without))

    step = ps.compile(training.step, backend="eager")  # captured whole, the hook with it
    captured, metrics = step(state, data[0])
    eager, _ = training.step(state, data[0])
    found = {f"class_error/{i}": float(metrics[f"class_error/{i}"]) for i in range(3)}
    found["observing_changes_nothing"] = float(all(torch.equal(state.params[name], p) for name, p in plain.params.items()))
    found["captured_is_eager"] = float(torch.equal(captured.hook_state["class_error"], eager.hook_state["class_error"]))
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
