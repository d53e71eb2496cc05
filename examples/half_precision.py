"""Train in float16 with a loss scale that finds its own size: too large at first, so the first batches overflow and are skipped.

The scale is a part of the chain and of the state: a skipped batch moves no parameter, no moment and no average, only the counts of
batches; gradients are unscaled before they are clipped; and the scale is saved and resumed with everything else. Forward and loss run
in float16; parameters and moments stay float32.
"""

import torch
from torch import nn

import purestep as ps


def data(count: int, seed: int) -> dict[str, torch.Tensor]:
    """A linear map with a bend."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=gen)
    return {"x": x, "y": x[:, :2].tanh() + 0.5 * x[:, 2:4]}


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    training = ps.Training(
        model,
        loss=ps.MSELoss(prediction_key="y", target_key="y", dtype_policy="prediction_to_target"),  # float16 to float32
        optimizer=ps.chain(ps.dynamic_loss_scale(initial_scale=2.0**24, growth_interval=100), ps.clip_by_global_norm(1.0), ps.adamw(1e-2)),
        hooks=(ps.hooks.ema(0.95),),
        forward=lambda model, batch: {"y": model(batch["x"])},
        precision="fp16",
    )
    state, scales, skipped = training.init(), [], []
    first = state
    for number in range(150):
        before = state
        state, metrics = training.step(state, data(64, number))
        scales.append(float(metrics["loss_scale/scale"]))
        if not metrics["update/applied"]:
            kept = (before.params, before.opt_state["adamw"], before.hook_state)
            now = (state.params, state.opt_state["adamw"], state.hook_state)
            skipped.append(all(torch.equal(a, b) for a, b in zip(ps.tree.leaves(kept), ps.tree.leaves(now), strict=True)))

    found = {
        "loss_before": float(training.step(first, data(64, 0))[1]["loss/total"]),
        "loss_after": float(metrics["loss/total"]),
        "skipped": float(len(skipped)),
        "skipped_left_no_trace": float(all(skipped)),
        "scale_at_last": scales[-1],
        "updates": float(state.counters.step_count),
        "batches": float(state.counters.batch_count),
    }
    print("  ".join(f"{name} {value:.4g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
