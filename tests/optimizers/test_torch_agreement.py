"""Where our definition coincides with torch.optim's, so do the numbers, in float64 over 20 steps."""

import pytest
import torch

from purestep import optimizers as ours
from purestep.core import tree
from purestep.core.selection import freeze
from purestep.core.transform import apply_updates, chain
from purestep.transforms import add_decayed_weights, clip_by_global_norm

SAME = {
    "sgd": (lambda: ours.sgd(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd momentum": (lambda: ours.sgd(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "sgd nesterov": (lambda: ours.sgd(0.1, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "sgd dampening": (lambda: ours.sgd(0.1, 0.9, dampening=0.4), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.4)),
    "sgd decay": (
        lambda: chain(add_decayed_weights(0.1), ours.sgd(0.1, 0.9)),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    ),
    "adam": (lambda: ours.adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam decay": (lambda: chain(add_decayed_weights(0.1), ours.adam(0.01)), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    "adamw": (lambda: ours.adamw(0.01, 0.8, 0.99, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.99), weight_decay=0.1)),
    "amsgrad": (lambda: ours.amsgrad(0.01, convention="torch"), lambda p: torch.optim.Adam(p, 0.01, amsgrad=True)),
    "adamax": (lambda: ours.adamax(0.01), lambda p: torch.optim.Adamax(p, 0.01)),
    "adadelta": (lambda: ours.adadelta(1.0), lambda p: torch.optim.Adadelta(p, 1.0)),
    "rmsprop": (lambda: ours.rmsprop(0.01, 0.99, eps_in_sqrt=False), lambda p: torch.optim.RMSprop(p, 0.01)),
    "rmsprop centered": (
        lambda: ours.rmsprop(0.01, 0.99, eps_in_sqrt=False, centered=True, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.9),
    ),
    "adagrad": (lambda: ours.adagrad(0.1, 0.0, 1e-10, eps_in_sqrt=False), lambda p: torch.optim.Adagrad(p, 0.1)),
    "nadam": (lambda: ours.nadam(0.01, convention="torch"), lambda p: torch.optim.NAdam(p, 0.01)),
    "nadamw": (
        lambda: ours.nadamw(0.01, weight_decay=0.1, convention="torch"),
        lambda p: torch.optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "radam": (lambda: ours.radam(0.01, convention="torch"), lambda p: torch.optim.RAdam(p, 0.01)),
    "rprop": (lambda: ours.rprop(0.01, convention="torch"), lambda p: torch.optim.Rprop(p, 0.01)),
    "adafactor": (
        lambda: ours.adafactor_torch(0.05, eps1=torch.finfo(torch.float64).eps, weight_decay=0.1),
        lambda p: torch.optim.Adafactor(p, 0.05, weight_decay=0.1),
    ),
}
SHAPES = {"a": (4, 3), "b": (3,), "c": (2, 3, 2, 2), "d": (1,)}


def random_tree(seed):
    gen = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=gen, dtype=torch.float64) for key, shape in SHAPES.items()}


def follow(transform, optimizer_of, clip=None):
    """Parameters of both after 20 steps with the same gradients."""
    params = random_tree(0)
    theirs = [p.clone().requires_grad_() for p in params.values()]
    optimizer, state = optimizer_of(theirs), transform.init(params)
    for step in range(20):
        grads = tree.map(lambda g, p: g + 0.1 * p, random_tree(step + 1), params)
        for p, g in zip(theirs, grads.values(), strict=True):
            p.grad = g.clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        optimizer.step()
        updates, state = transform.update(grads, state, params)
        params = apply_updates(params, updates)
    return params, dict(zip(params, theirs, strict=True))


@pytest.mark.parametrize("name", SAME)
def test_an_optimizer_equals_torch(name):
    make, optimizer_of = SAME[name]
    params, theirs = follow(make(), optimizer_of)
    for key, p in params.items():
        torch.testing.assert_close(p, theirs[key].detach(), rtol=0, atol=1e-12)


def test_clipping_with_eps_equals_clip_grad_norm():
    params, theirs = follow(chain(clip_by_global_norm(1.0, eps=1e-6), ours.sgd(0.1)), lambda p: torch.optim.SGD(p, 0.1), clip=1.0)
    for key, p in params.items():
        torch.testing.assert_close(p, theirs[key].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "optimizer_of"), [("amsgrad", SAME["amsgrad"][1]), ("nadam", SAME["nadam"][1])])
def test_the_conventions_of_optax_and_torch_really_differ(name, optimizer_of):
    params, theirs = follow(getattr(ours, name)(0.01), optimizer_of)
    assert max(float((p - theirs[key].detach()).abs().max()) for key, p in params.items()) > 1e-3


def test_frozen_leaves_stay_bitwise_although_decay_and_momentum_would_move_them():
    params = random_tree(0)
    transform = chain(ours.adamw(0.01, weight_decay=0.1), freeze("b"))
    updates, _ = transform.update(random_tree(1), transform.init(params), params)
    assert torch.equal(apply_updates(params, updates)["b"], params["b"])
