"""Line searches and L-BFGS: positions after each tenth step, recorded from optax 0.2.8 in float64, and the conditions themselves."""

import itertools

import numpy as np
import pytest
import torch

from purestep.core.transform import apply_updates, chain
from purestep.optimizers import lbfgs, sgd
from purestep.transforms import scale_by_backtracking_linesearch, scale_by_lbfgs, scale_by_zoom_linesearch

START = {"x": torch.tensor([-1.2, 1.0, 0.5, -0.3], dtype=torch.float64), "y": torch.tensor([0.7, -2.0], dtype=torch.float64)}


def loss(params):
    """Rosenbrock's valley in four dimensions, and two hyperbolic cosines."""
    x = params["x"]
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() + torch.cosh(params["y"]).sum()


def path(optimizer, steps):
    params, state = START, optimizer.init(START)
    for _ in range(steps):
        grad = torch.func.grad(loss)(params)
        updates, state = optimizer.update(grad, state, params, value=loss(params), grad=grad, value_fn=loss)
        params = apply_updates(params, updates)
        yield params, state


CASES = {
    "lbfgs": lambda: lbfgs(),
    "lbfgs3": lambda: lbfgs(memory_size=3, scale_init_precond=False),
    "zoomkeep": lambda: chain(sgd(1.0), scale_by_zoom_linesearch(15)),
    "zoommax": lambda: chain(sgd(1.0), scale_by_zoom_linesearch(6, max_learning_rate=1e-3, approx_dec_rtol=None, curv_rtol=0.1)),
    "back": lambda: chain(sgd(1.0), scale_by_backtracking_linesearch(20)),
    "back2": lambda: chain(
        sgd(1.0),
        scale_by_backtracking_linesearch(
            5, max_learning_rate=0.01, store_grad=True, atol=1e-3, rtol=1e-2, decrease_factor=0.5, increase_factor=2.0
        ),
    ),
}
RECORDED = {
    "lbfgs": [
        [-0.4477221331989701, 0.24701057908939228, 0.04434835452359877, -0.02107077664208741, 0.3279540183069738, -0.479803772834247],
        [0.07803702520583439, 0.02047384097388559, 0.04111075196461755, -0.014450867732646616, -0.0277306839399808, -0.1244806233082772],
    ],
    "lbfgs3": [
        [0.5703863183436618, 0.3940147902660693, 0.19772260412710968, -0.027974836961439493, 0.6691983519418961, -1.8601134145097475],
        [0.7583087795609499, 0.566225203760418, 0.30908834834731164, 0.03371797342388715, 0.37406786310161316, -0.7663606183314533],
    ],
    "zoomkeep": [
        [0.5252385591299097, 0.28948248272339705, 0.08233301322528765, 0.006405586246640428, 0.6585673976895453, -1.812644967521193],
        [0.6149492031111726, 0.38054949334084404, 0.14665061127433818, 0.019693557232996303, 0.6132302334445823, -1.6289378699787735],
    ],
    "zoommax": [
        [-0.8132278601414068, 0.6580824744173317, 0.4098650992582624, 0.12934911292964593, 0.6924568052648113, -1.9643327588110608],
        [-0.792091095403462, 0.6370525905633238, 0.40855764912817855, 0.16298784799143815, 0.6850073555119575, -1.929943590015525],
    ],
    "back": [
        [0.5009286040765472, 0.22148400960302242, 0.07113845932308155, 0.003485380463425611, 0.6659296968315708, -1.8444060552871362],
        [0.5557015810581971, 0.28206737339028043, 0.09990887649953178, 0.007308823787454207, 0.6359338955094108, -1.7198883143776678],
    ],
    "back2": [
        [-0.2113522632463148, 0.04418085321185372, 0.018798852050688396, -0.0007791468656050537, 0.6419288036970637, -1.7432784454798906],
        [-0.04748089183747399, 0.002578658191956608, 0.01865490355736909, -0.0008205292036421175, 0.5799092235353523, -1.508819908115055],
    ],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_positions_are_those_of_optax(name):
    found = [torch.cat([params["x"], params["y"]]).numpy() for params, _ in path(CASES[name](), 20)]
    # sums of products in another order, which a valley magnifies
    np.testing.assert_allclose([found[9], found[19]], RECORDED[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("curv_rtol", [0.9, 0.1])
def test_a_zoomed_step_satisfies_the_conditions_of_wolfe(curv_rtol):
    before = START
    optimizer = chain(sgd(1.0), scale_by_zoom_linesearch(30, curv_rtol=curv_rtol, approx_dec_rtol=None))
    for params, state in path(optimizer, 5):
        grad, new_grad = torch.func.grad(loss)(before), torch.func.grad(loss)(params)
        length = float(state["scale_by_zoom_linesearch"].learning_rate)
        slope, new_slope = (-sum((grad[k] * g[k]).sum() for k in g) for g in (grad, new_grad))
        assert loss(params) <= loss(before) + 1e-4 * length * slope
        assert abs(new_slope) <= curv_rtol * abs(slope)
        before = params


def test_backtracking_lowers_the_loss_each_time():
    optimizer = chain(sgd(1.0), scale_by_backtracking_linesearch(20, decrease_factor=0.5))
    values = [float(loss(START)), *(float(loss(params)) for params, _ in path(optimizer, 20))]
    assert all(later < earlier for earlier, later in itertools.pairwise(values))


def test_a_loss_that_is_infinite_all_along_the_line_is_not_followed():
    transform = scale_by_backtracking_linesearch(3)
    grad = {"p": torch.ones(1, dtype=torch.float64)}
    updates, _ = transform.update(
        grad, transform.init(grad), grad, value=torch.tensor(1.0), grad=grad, value_fn=lambda p: p["p"].sum() * float("inf")
    )
    assert float(updates["p"]) == 0.0


def test_the_stored_gradient_is_that_of_the_new_parameters():
    params, state = next(iter(path(CASES["back2"](), 1)))
    stored = state["scale_by_backtracking_linesearch"].grad
    torch.testing.assert_close(stored["x"], torch.func.grad(loss)(params)["x"], rtol=1e-12, atol=0)


def test_lbfgs_solves_a_quadratic_in_as_many_steps_as_dimensions():
    hessian = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    optimizer, params = lbfgs(linesearch=scale_by_zoom_linesearch(30, curv_rtol=1e-8)), {"p": torch.ones(3, dtype=torch.float64)}
    state = optimizer.init(params)

    def quadratic(params):
        return params["p"] @ hessian @ params["p"] / 2

    for _ in range(4):
        grad = torch.func.grad(quadratic)(params)
        updates, state = optimizer.update(grad, state, params, value=quadratic(params), grad=grad, value_fn=quadratic)
        params = apply_updates(params, updates)
    assert float(quadratic(params)) < 1e-12


def test_what_a_search_needs_is_declared():
    assert lbfgs().needs == {"value", "grad", "value_fn"}
    assert lbfgs(linesearch=None).needs == frozenset()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale_by_lbfgs(memory_size=0), "memory_size must be at least 1, got 0"),
        (lambda: scale_by_zoom_linesearch(5, initial_guess_strategy="last"), "unknown initial_guess_strategy 'last'"),
    ],
)
def test_a_wrong_argument_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
