"""Decide yourself how gradients of several terms become one: three ways that are there, and one of your own.

Two tasks share a layer. The unit of the first makes its loss ten thousand times larger, so the plain sum hardly sees the second.
`combine_gradients` gets the gradient of each term over the whole batch (one forward pass, one backward for each) and their weights.
"""

import torch
from torch import Tensor, nn

import purestep as ps
from purestep.losses.gradient_surgery import balance_norms, project_conflicts, weighted_sum


class TwoTasks(nn.Module):
    """A shared layer and two heads; the first answers in units a hundred times smaller."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.first, self.second = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Both answers."""
        hidden = self.shared(batch["x"])
        return {"first": 100.0 * self.first(hidden), "second": self.second(hidden)}


def data(seed: int) -> dict[str, Tensor]:
    x = torch.randn(128, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": x, "first": 100.0 * torch.sin(x[:, :1]), "second": torch.cos(x[:, 1:2]) * x[:, 2:]}


def common_directions(gradients, weights):
    """A way of your own: move the shared layer only where all terms agree on the sign."""
    total = weighted_sum(gradients, weights)
    agree = lambda g, *rest: torch.stack([g, *rest]).sign().sum(0).abs() == len(gradients)  # noqa: E731
    keep = ps.tree.map(agree, *gradients)
    shared = lambda path, g, same: g * same if path.startswith("shared") else g  # noqa: E731
    return ps.tree.map_with_path(shared, total, keep)


WAYS = {"weighted_sum": weighted_sum, "project_conflicts": project_conflicts, "balance_norms": balance_norms, "own": common_directions}


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = TwoTasks().double()
    loss = sum(ps.MSELoss(prediction_key=name, target_key=name, name=name) for name in ("first", "second"))
    optimizer = ps.chain(ps.clip_by_global_norm(1.0), ps.sgd(0.03, momentum=0.9))
    plain = ps.Training(model, loss=loss, optimizer=optimizer)
    batches, test = [data(seed) for seed in range(10)], ps.Validation([data(99)])
    found = {}
    for name, combine in {"none": None, **WAYS}.items():
        result = ps.fit(plain.replace(combine_gradients=combine), batches, num_steps=200, validation=test)
        found |= {f"{name}/{task}": result.history[-1][f"validation/loss/{task}/unweighted"] for task in ("first", "second")}
        print(f"{name:18}  first {found[f'{name}/first']:9.3f}  second {found[f'{name}/second']:.3f}")
    return found


if __name__ == "__main__":
    main()
