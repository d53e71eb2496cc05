"""Train two models against each other in one compiled step: a generator and a discriminator that take turns.

Both are trainable; what alternates is data, not code. In even updates the loss is that of the discriminator and only its part of the
chain acts, in odd ones those of the generator. The part that waits emits zeros and keeps its moments, bit for bit.
"""

import torch
from torch import Tensor, nn

import purestep as ps


def gives_turns_to(parity: int):
    """A condition on the number of updates so far, for parts of a chain and for weights of a loss."""
    return lambda count, *_: count % 2 == parity


def weight_in_turn(parity: int):
    return lambda step_count, epoch_count: (step_count % 2 == parity).double()


def forward(models, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    made = models["generator"](torch.randn(len(batch["x"]), 4))  # inside a step drawn from its key: repeatable
    return {"on_made": models["discriminator"](made), "on_real": models["discriminator"](batch["x"])}


def targets(loss, predictions, batch, *, target_keys) -> dict[str, Tensor]:
    return {"real": torch.ones_like(predictions["on_real"]), "made": torch.zeros_like(predictions["on_made"])}


def judged(prediction: str, as_what: str, name: str) -> ps.BinaryCrossEntropyLoss:
    return ps.BinaryCrossEntropyLoss(prediction_key=prediction, target_key=as_what, name=name)


def main() -> dict[str, float]:
    torch.manual_seed(0)
    models = {
        "generator": nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)),
        "discriminator": nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)),
    }
    loss = ps.ComposedLoss(
        [judged("on_real", "real", "tells_real"), judged("on_made", "made", "tells_made"), judged("on_made", "real", "deceives")],
        weights=[weight_in_turn(0), weight_in_turn(0), weight_in_turn(1)],
        normalize_weights=False,
    )
    optimizer = ps.partition(
        {
            "even": ps.conditionally_mask(ps.adam(5e-3, b1=0.5), gives_turns_to(0)),
            "odd": ps.conditionally_mask(ps.adam(5e-3, b1=0.5), gives_turns_to(1)),
        },
        {"discriminator.*": "even", "generator.*": "odd"},
    )
    training = ps.Training(models, loss=loss, optimizer=optimizer, forward=forward, targets=targets, hooks=(ps.hooks.ema(0.99),))
    step = ps.compile(training.step, backend="eager", on_recompile="error")  # one graph for both turns

    gen, state, still = torch.Generator().manual_seed(1), training.init(), []
    for number in range(600):
        before = state.params
        state, _ = step(state, {"x": 3.0 + 0.5 * torch.randn(64, 1, generator=gen)})
        waiting = ("generator", "discriminator")[number % 2]
        still.append(all(torch.equal(before[waiting][name], p) for name, p in state.params[waiting].items()))

    params, _ = ps.hooks.average(state)
    with torch.no_grad():
        made = torch.func.functional_call(models["generator"], params["generator"], torch.randn(2000, 4, generator=gen))
    found = {
        "mean": float(made.mean()),
        "deviation": float(made.std()),
        "graphs": float(len(step.explain())),
        "waits_bitwise": float(all(still)),
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()), "  (truth: mean 3, deviation 0.5)")
    return found


if __name__ == "__main__":
    main()
