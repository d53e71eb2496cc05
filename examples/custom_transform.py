"""Write a gradient transform of your own: keep a share of the last update, and check that it keeps the laws.

A transform is two pure functions and a name. What it remembers is its state, a tree of tensors; the step passes more arguments than it
needs, so `update` takes `**extra`. One without memory is shorter: `ps.stateless(lambda updates, params: ...)`.
"""

import torch

import purestep as ps


def inertia(share: float) -> ps.GradientTransform:
    """Mix each update with the one before: `u <- share * last + (1 - share) * u`."""

    def update(updates, last, params=None, **extra):
        mixed = ps.tree.map(lambda u, before: share * before + (1 - share) * u, updates, last)
        return mixed, ps.tree.map(torch.clone, mixed)  # what goes out and what is kept share no memory

    return ps.GradientTransform(lambda params: ps.tree.map(torch.zeros_like, params), update, name="inertia")


def main() -> dict[str, float]:
    params = {"w": torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)}
    ps.testing.check_transform(inertia(0.5), params)  # raises if a law is broken, and says which
    halve = ps.stateless(lambda updates, params: ps.tree.map(lambda u: 0.5 * u, updates), "halve")
    optimizer = ps.chain(inertia(0.5), halve, ps.sgd(0.2))
    step = ps.make_step(lambda params, target: (params["w"] - target).square().sum(), optimizer)
    state = ps.init_state(params, optimizer)
    for _ in range(200):
        state, metrics = step(state, torch.ones(3, dtype=torch.float64))
    print(f"loss {metrics['loss/total']:.1e}  kept {list(state.opt_state)}")
    return {"loss": float(metrics["loss/total"]), "remembers": float("inertia" in state.opt_state)}


if __name__ == "__main__":
    main()
