"""Both ways to the derivatives give the same numbers, are captured whole, and keep nothing that nobody asked for."""

import pytest
import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core import tree


def parameters_of(potential):
    return {name: parameter.detach() for name, parameter in potential.named_parameters()}


def loss_of(potential, params, batch):
    prediction = functional_call(potential, params, (batch,))
    return (prediction["energy"] - batch.energy).square().mean() + (prediction["forces"] - batch.forces).square().mean()


def by_func(potential, params, batch):
    return grad_and_value(lambda p: loss_of(potential, p, batch))(params)


def by_autograd(potential, params, batch):
    leaves = tree.map(lambda p: p.detach().requires_grad_(), params)
    loss = loss_of(potential, leaves, batch)
    grads = torch.autograd.grad(loss, tree.leaves(leaves))
    return dict(zip(sorted(leaves), grads, strict=True)), loss.detach()


def largest_difference(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_both_engines_give_the_same_loss_and_gradients(potential, batch):
    params = parameters_of(potential)
    assert largest_difference(by_func(potential, params, batch), by_autograd(potential, params, batch)) <= 1e-12


def test_dynamo_traces_a_whole_gradient_of_energies_and_forces(potential, batch):
    params = parameters_of(potential)
    compiled = torch.compile(lambda p, b: by_func(potential, p, b), fullgraph=True, backend="aot_eager")
    assert largest_difference(compiled(params, batch), by_autograd(potential, params, batch)) <= 1e-10


def test_make_fx_traces_the_second_derivative_without_baking_in_the_batch(potential, batch):
    params = parameters_of(potential)
    graph = make_fx(lambda p, b: by_autograd(potential, p, b))(params, batch)
    moved = batch.replace(positions=batch.positions * 1.1)
    assert largest_difference(graph(params, moved), by_autograd(potential, params, moved)) <= 1e-12


def test_an_ensemble_is_mapped_over_parameters(potential, batch):
    params = parameters_of(potential)
    stacked = tree.map(lambda p: torch.stack([p, 1.1 * p]), params)
    grads, losses = vmap(lambda p: by_func(potential, p, batch))(stacked)
    second = by_autograd(potential, tree.map(lambda p: 1.1 * p, params), batch)
    assert largest_difference((tree.map(lambda g: g[1], grads), losses[1]), second) <= 1e-12


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forces_are_there_where_gradients_are_off_and_no_graph_is_kept(potential, batch, mode):
    with mode():
        prediction = potential(batch)
    # a backward that is itself recorded adds up in another order: rounding only
    assert torch.allclose(prediction["forces"], potential(batch)["forces"], rtol=0, atol=1e-15)
    assert not any(tensor.requires_grad for tensor in prediction.values())


def test_no_graph_is_kept_for_parameters_that_need_no_gradient(potential, batch):
    potential.requires_grad_(False)
    assert not any(tensor.requires_grad for tensor in potential(batch).values())


def test_positions_that_require_a_gradient_stay_in_the_graph(potential, batch):
    potential.requires_grad_(False)
    positions = batch.positions.clone().requires_grad_()
    prediction = potential(batch.replace(positions=positions))
    (slope,) = torch.autograd.grad(prediction["energy"].sum(), positions, retain_graph=True)
    assert torch.allclose(slope, -prediction["forces"], rtol=0, atol=1e-14)
    (curvature,) = torch.autograd.grad(prediction["forces"].square().sum(), positions)
    assert curvature.abs().max() > 0


def test_the_batch_is_left_as_it_was(potential, batch):
    before = batch.positions.clone()
    potential(batch)
    assert torch.equal(batch.positions, before) and not batch.positions.requires_grad


def test_float32_potentials_accept_float64_positions(potential, batch):
    prediction = potential.float()(batch)
    assert prediction["energy"].dtype == torch.float32 and prediction["forces"].dtype == torch.float64
