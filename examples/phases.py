"""Train in phases without rebuilding anything: energies first, forces faded in, then only an average of small steps.

Two ways, which give the same numbers. A phase can be a schedule: weights of the loss, learning rate and start of the average are
functions of the count of updates, so one captured graph runs through all phases. Or it can be another `Training` that goes on with the
same state: what is kept (parameters, moments, counters, averages) does not depend on loss weights, so the state fits as it is.
"""

import torch
from torch import Tensor, nn

import purestep as ps
from purestep.models.forces import value_and_derivatives

ALONE, FADE, TOTAL = 50, 150, 500


class Well(nn.Module):
    """An energy of points on a line, and the force as its slope."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Energy and force of each point."""
        energy, (slope,) = value_and_derivatives(self.net, (batch["x"],), self.parameters())
        return {"energy": energy, "force": -slope}


def data(seed: int, noise: float = 1.0) -> dict[str, Tensor]:
    """Energy and force of a double well, with errors in the labels that the average evens out."""
    gen = torch.Generator().manual_seed(seed)
    x = 4.0 * torch.rand(64, 1, generator=gen, dtype=torch.float64) - 2.0
    errors = noise * torch.randn(2, 64, 1, generator=gen, dtype=torch.float64)
    return {"x": x, "energy": (x.square() - 1.0).square() / 4 + errors[0], "force": x - x**3 + errors[1]}


ENERGY = ps.MSELoss(prediction_key="energy", target_key="energy", name="energy")
FORCE = ps.MSELoss(prediction_key="force", target_key="force", name="force")


def fade_in(step_count: Tensor, epoch_count: Tensor) -> Tensor:
    """0 while energies are alone, then a line up to 1."""
    return ps.LinearWeight(0.0, 1.0, num_steps=FADE)(torch.clamp(step_count - ALONE, min=0), epoch_count)


def make_training(force_weight) -> ps.Training:
    """The same optimizer and average in every phase; the average begins when the learning rate has fallen."""
    torch.manual_seed(0)
    rate = ps.schedules.join([ps.schedules.constant(3e-2), ps.schedules.constant(1e-2)], [ALONE + FADE])
    loss = ps.ComposedLoss([ENERGY, FORCE], weights=[1.0, force_weight], normalize_weights=False)
    return ps.Training(Well().double(), loss=loss, optimizer=ps.adamw(rate), hooks=(ps.hooks.swa(start_step=ALONE + FADE),))


def main() -> dict[str, float]:
    batches = [data(seed) for seed in range(20)]
    scheduled = make_training(fade_in)
    step = ps.compile(scheduled.step, backend="eager", on_recompile="error")
    in_one_graph = ps.fit(scheduled, batches, num_steps=TOTAL, step=step).state

    state = scheduled.init()
    phases = {ALONE: 0.0, ALONE + FADE: fade_in, TOTAL: 1.0}
    for end, weight in phases.items():
        state = ps.fit(make_training(weight), batches, state=state, num_steps=end).state

    live, averaged = (
        scheduled.evaluate(state, data(99, noise=0.0), *chosen)[1]["force"].numerator / 64
        for chosen in ((), ps.hooks.average(state, "swa"))
    )
    found = {
        "graphs": float(len(step.explain())),
        "phases_are_schedules": float(all(torch.equal(in_one_graph.params[name], p) for name, p in state.params.items())),
        "averaged_updates": float(state.hook_state["swa"].memory),
        "force_loss": float(live),
        "force_loss_averaged": float(averaged),
    }
    print("  ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
