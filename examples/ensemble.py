"""Train eight networks at once: one mapped step over states that differ in weights, seeds and learning rates.

The step is a function of a state, so an ensemble is `torch.func.vmap` of it. Members draw dropout masks of their own; where they
disagree nobody has seen data.
"""

import dataclasses

import torch
from torch import nn

import purestep as ps

MEMBERS = 8


def make_training(seed: int) -> ps.Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.05), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    loss = ps.MSELoss(prediction_key="y", target_key="y")
    return ps.Training(model, loss=loss, optimizer=ps.adamw(1e-2), forward=lambda model, batch: {"y": model(batch["x"])})


def member(seed: int) -> ps.TrainState:
    """A state with weights, randomness and a learning rate of its own."""
    state = make_training(seed).init(seed)
    return dataclasses.replace(state, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=4e-3 * 1.3**seed))


def main() -> dict[str, float]:
    training = make_training(0)
    states = [member(seed) for seed in range(MEMBERS)]
    together = ps.tree.map(lambda *leaves: torch.stack(leaves), *states)
    step = torch.func.vmap(training.step, in_dims=(0, None))
    evaluate = torch.func.vmap(training.evaluate, in_dims=(0, None))

    x = torch.linspace(-2.0, 2.0, 64, dtype=torch.float64).unsqueeze(1)
    batch = {"x": x, "y": torch.sin(2.0 * x)}
    alone, _ = training.step(states[3], batch)
    first, _ = step(together, batch)
    difference = max(float((first.params[name][3] - p).abs().max()) for name, p in alone.params.items())
    for _ in range(300):
        together, metrics = step(together, batch)

    far = {"x": torch.cat([x, x + 6.0]), "y": torch.zeros(128, 1, dtype=torch.float64)}
    spread = evaluate(together, far)[0]["y"].std(0)
    found = {
        "worst_loss": float(metrics["loss/total"].max()),
        "spread_where_seen": float(spread[:64].mean()),
        "spread_elsewhere": float(spread[64:].mean()),
        "alone_or_together": difference,
    }
    print("  ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
