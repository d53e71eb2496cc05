"""Write a loss of your own: quantiles instead of the mean, and a weight that follows a schedule of your own.

A term says what it sums and what it counts; the division happens once, over all parts of a batch and all ranks. So it is exact however
a batch is cut, padding and missing labels included, and composes with the terms that are there.
"""

import torch
from torch import Tensor, nn

import purestep as ps


def pinball(quantile: float) -> ps.FunctionTerm:
    """The loss whose minimum is a quantile: errors below weigh `quantile`, errors above the rest; missing targets are NaN."""

    def sums(prediction: Tensor, target: Tensor, batch: dict[str, Tensor]) -> ps.Sums:
        known = torch.isfinite(target)
        error = torch.where(known, target, 0.0) - torch.where(known, prediction, 0.0)  # NaN must not enter the graph at all
        return ps.Sums(torch.maximum(quantile * error, (quantile - 1) * error).sum(), known.sum().to(error.dtype))

    return ps.FunctionTerm(sums, prediction_key=f"q{round(100 * quantile)}", target_key="y", name=f"q{round(100 * quantile)}")


def after_warmup(step_count: Tensor, epoch_count: Tensor) -> Tensor:
    """A weight is any function of the counts, computed in the graph: changing it never compiles anew."""
    return torch.clamp(step_count.double() / 100, max=1.0)


def samples(count: int, seed: int) -> dict[str, Tensor]:
    """Noise that grows with x; every fifth target is missing."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=gen, dtype=torch.float64)
    y = x + 0.5 * x * torch.randn(count, 1, generator=gen, dtype=torch.float64)
    return {"x": x, "y": torch.where(torch.arange(count).unsqueeze(1) % 5 == 4, torch.nan, y)}


def forward(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    low, middle, high = model(batch["x"]).split(1, -1)
    return {"q10": low, "q50": middle, "q90": high}


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    terms = after_warmup * pinball(0.1) + pinball(0.5) + after_warmup * pinball(0.9)
    loss = ps.ComposedLoss(terms.weighted(), normalize_weights=False)
    training = ps.Training(model, loss=loss, optimizer=ps.adamw(ps.schedules.cosine_decay(2e-2, 800)), forward=forward)
    state = ps.fit(training, [samples(200, seed) for seed in range(10)], num_steps=600).state

    batch = samples(37, seed=50)
    _, whole = training.step(state, batch)
    _, in_parts = training.replace(microbatches=5).step(state, batch)  # of 8, 8, 7, 7 and 7 samples, with other numbers of labels
    test = samples(4000, seed=51)
    predictions, _ = training.evaluate(state, test)
    known = torch.isfinite(test["y"])
    found = {name: float((test["y"] < value)[known].double().mean()) for name, value in predictions.items()}
    found["cutting_changes"] = float(abs(whole["update/grad_norm"] - in_parts["update/grad_norm"]))
    print("  ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
