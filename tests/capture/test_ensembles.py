"""What only a pure step can do, captured: eight networks trained by one mapped step, and derivatives through several steps."""

import dataclasses

import pytest
import torch

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_close
from tests.examples_of_models import Plain, batches, member, run, seeded, stacked, training

RATES = [1e-3 * 1.5**number for number in range(8)]


def sweep(tr):
    """A state for each rate, with a seed of its own."""
    states = [tr.init(seed) for seed in range(len(RATES))]
    return [
        dataclasses.replace(state, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=rate))
        for state, rate in zip(states, RATES, strict=True)
    ]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_captured_step_trains_eight_rates_and_seeds_as_eight_runs_do(backend):
    tr, data = training(optimizer=ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(1e-2))), batches(3)  # with dropout and BatchNorm
    step = ps.compile(torch.func.vmap(tr.step, in_dims=(0, None)), donate=True, backend=backend, on_recompile="error")
    together = run(step, stacked(sweep(tr)), data)
    assert len(step.explain()) == 1
    for number, state in enumerate(sweep(tr)):
        # products of stacked matrices are summed in another order
        assert_trees_close(member(together, number), run(tr.step, state, data), rtol=1e-10, atol=1e-10)


def test_members_of_a_captured_ensemble_draw_dropout_masks_of_their_own():
    tr, data = training(), batches(1)
    step = ps.compile(torch.func.vmap(tr.step, in_dims=(0, None)), backend="eager")
    _, metrics = run(step, stacked([tr.init(0), tr.init(0), tr.init(1)]), data)
    first, twin, other = metrics["loss/total"].tolist()
    assert first == twin != other


def _distance(tr, data, params, rate):
    """A function of where three steps lead."""
    state = tr.init()
    state = dataclasses.replace(state, params=params, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=rate))
    return run(tr.step, state, data)[0].params["out.weight"].square().sum()


@pytest.mark.parametrize("backend", ["uncaptured", "eager"])
def test_three_unrolled_steps_are_differentiated_by_initial_parameters_and_learning_rate(backend):
    tr, data = training(seeded(Plain), ps.adamw(1e-2), grad_engine="func"), batches(3)
    start, rate = tr.init().params, torch.tensor(1e-2, dtype=torch.float64)
    plain = torch.func.grad(lambda params, rate: _distance(tr, data, params, rate), argnums=(0, 1))
    slopes, slope = plain(start, rate) if backend == "uncaptured" else ps.compile(plain, backend=backend)(start, rate)

    gen = torch.Generator().manual_seed(3)
    direction = ps.tree.map(lambda leaf: torch.randn(leaf.shape, generator=gen, dtype=leaf.dtype), start)
    moved = lambda by: ps.tree.map(lambda leaf, d: leaf + by * d, start, direction)  # noqa: E731
    by, more = 1e-5, 1e-6
    # errors of central differences: the square of the step times third derivatives, and rounding over the step
    expected = (_distance(tr, data, moved(by), rate) - _distance(tr, data, moved(-by), rate)) / (2 * by)
    along = sum((slopes[name] * direction[name]).sum() for name in slopes)
    assert along.item() == pytest.approx(expected.item(), rel=1e-6)
    expected = (_distance(tr, data, start, rate + more) - _distance(tr, data, start, rate - more)) / (2 * more)
    assert slope.item() == pytest.approx(expected.item(), rel=1e-6)


def weighted(p, x):
    return (p * x).square().sum()


TRANSFORMS = {
    "vmap": lambda fn: lambda p, x: torch.func.vmap(fn, (None, 0))(p, x[None])[0],
    "grad": torch.func.grad,
    "jacrev": torch.func.jacrev,
    "grad of vmap": lambda fn: torch.func.grad(lambda p, x: torch.func.vmap(fn, (None, 0))(p, x[None]).sum()),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transformed_function_is_compiled_and_a_compiled_one_is_not_transformed(transform):
    p, x = torch.tensor(2.0), torch.arange(3.0)
    expected = transform(weighted)(p, x)
    assert ps.compile(transform(weighted), backend="eager")(p, x).equal(expected)
    assert expected.item() == 20.0  # 2**2 * (1 + 4), and its derivative 2 * 2 * (1 + 4)
    compiled = ps.compile(weighted, backend="eager")
    for _ in range(2):  # before it is captured, and after
        with pytest.raises(CaptureError, match="compile the transformed function instead"):
            transform(compiled)(p, x)
        compiled(p, x)
