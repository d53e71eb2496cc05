"""What a step refuses, and what it says: wrong states, states that would change their form, names used twice."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.core.hook import Hook, Stage
from purestep.core.schedule import init_hyperparam
from purestep.errors import HookError, LossError, StateError
from tests.examples_of_models import Plain, batches, seeded, training

ONE = torch.ones((), dtype=torch.float64)


def squares(w, x):
    return (w * x).square().mean()


def stepped(hook):
    step = ps.make_step(squares, ps.sgd(0.1), [hook])
    return step(ps.init_state(ONE, ps.sgd(0.1), [hook]), ONE)


def remembering(first, later):
    return Hook("memory", frozenset({Stage.AFTER_BATCH}), lambda state: first, lambda state, ctx: (later, ctx))


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (torch.zeros(2, dtype=torch.float32), r"hook_state\.memory was \(torch.float64.*became \(torch.float32"),
        (torch.zeros(3, dtype=torch.float64), r"hook_state\.memory was .*\(2,\).*became .*\(3,\)"),
        (0.0, r"hook_state\.memory was .*became float"),
        ({"a": torch.zeros(2, dtype=torch.float64)}, r"lost hook_state\.memory; gained hook_state\.memory\.a"),
    ],
)
def test_a_hook_state_that_changes_its_form_is_refused_by_path(later, message):
    with pytest.raises(StateError, match=message):
        stepped(remembering(torch.zeros(2, dtype=torch.float64), later))


def test_a_buffer_that_changes_its_dtype_is_refused_by_path():
    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1, dtype=torch.float64)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, batch):
            self.seen = (self.seen + batch["x"].sum().detach()).float()
            return {"y": self.linear(batch["x"])}

    tr = ps.Training(seeded(Drifting), loss=lambda predictions, batch: predictions["y"].square().mean(), optimizer=ps.sgd(0.1))
    with pytest.raises(StateError, match=r"buffers\.seen was \(torch.float64"):
        tr.step(tr.init(), {"x": torch.ones(2, 3, dtype=torch.float64)})


@pytest.mark.parametrize("state", [{"params": ONE}, None, (ONE, {})])
def test_what_is_no_state_is_refused_by_name(state):
    tr = training(seeded(Plain), ps.sgd(0.1))
    with pytest.raises(StateError, match=f"expected a TrainState, as init.. makes it, got {type(state).__name__}"):
        tr.step(state, batches(1)[0])


def test_a_state_made_with_other_hooks_is_refused():
    step = ps.make_step(squares, ps.sgd(0.1), [ps.hooks.gradient_norm()])
    with pytest.raises(HookError, match="has no hook 'gradient_norm'"):
        step(ps.init_state(ONE, ps.sgd(0.1)), ONE)


def test_a_hook_that_returns_nothing_is_told_what_to_return():
    with pytest.raises(HookError, match=r"returned NoneType; expected \(hook state, context\)"):
        stepped(Hook("silent", frozenset({Stage.AFTER_BATCH}), lambda state: (), lambda state, ctx: None))


@pytest.mark.parametrize("name", ["loss/total", "update/applied"])
def test_a_metric_that_bears_the_name_of_the_steps_own_is_refused(name):
    step = ps.make_step(lambda w, x: (squares(w, x), {name: ONE}), ps.sgd(0.1))
    with pytest.raises(ValueError, match=f"two metrics are called {name}"):
        step(ps.init_state(ONE, ps.sgd(0.1)), ONE)


@pytest.mark.parametrize("params", [{"w": 1.0}, [ONE, "text"]])
def test_parameters_that_are_no_tensors_are_refused_by_path(params):
    with pytest.raises(TypeError, match=r"params\.(w|1) is a (float|str); parameters are tensors"):
        ps.init_state(params, ps.sgd(0.1))


@pytest.mark.parametrize("rate", [float("nan"), "1e-3", True])
def test_a_rate_that_is_no_number_is_refused_when_the_optimizer_is_made(rate):
    with pytest.raises((TypeError, ValueError), match="learning_rate must"):
        ps.sgd(rate)
    with pytest.raises((TypeError, ValueError), match="hyperparameter"):  # of a transform of one's own, when its state is made
        init_hyperparam(rate, ONE)


@pytest.mark.parametrize("loss", [None, 1.0, "mse"])
def test_a_loss_that_is_no_loss_is_refused(loss):
    with pytest.raises(LossError, match="expected a loss term"):
        ps.Training(seeded(Plain), loss=loss, optimizer=ps.sgd(0.1))


def test_a_loss_that_returns_nothing_says_what_it_should_return():
    tr = training(seeded(Plain), ps.sgd(0.1), loss=lambda predictions, batch: None)
    with pytest.raises(LossError, match="returns a 0-d tensor or Sums, got NoneType"):
        tr.step(tr.init(), batches(1)[0])


# --- what a newcomer gives --------------------------------------------------------------------------------------------

POINTS = {"x": torch.ones(4, 3), "y": torch.zeros(4, 2)}


def first_step(batch, **options):
    tr = ps.Training(nn.Linear(3, 2), **{"loss": ps.MSELoss(prediction_key="y", target_key="y"), "optimizer": ps.sgd(0.1)} | options)
    return tr.step(tr.init(), batch)


def test_a_module_that_cannot_take_the_whole_batch_is_explained():
    with pytest.raises(TypeError, match=r"with 'x', 'y'; say what it gets and returns: Training\(\.\.\., forward=lambda model, batch"):
        first_step(POINTS)


def test_arrays_in_a_batch_are_named():
    with pytest.raises(TypeError, match=r"arrays that are no tensors \(x\); convert them with torch\.from_numpy"):
        first_step({**POINTS, "x": POINTS["x"].numpy()}, forward=lambda model, batch: {"y": model(batch["x"])})
    with pytest.raises(LossError, match=r"loss term MSELoss: target 'y' is a ndarray; make it a tensor: torch\.from_numpy"):
        first_step({**POINTS, "y": POINTS["y"].numpy()}, forward=lambda model, batch: {"y": model(batch["x"])})


def test_a_forward_that_returns_a_tensor_is_told_to_name_it():
    with pytest.raises(LossError, match=r"MSELoss: forward returned a Tensor; return a mapping such as \{'y': \.\.\.\}"):
        first_step(POINTS, forward=lambda model, batch: model(batch["x"]))


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.mse_loss])
def test_a_loss_of_torch_is_refused_with_what_to_write(loss):
    with pytest.raises(LossError, match=r"takes a prediction and a target; write a term such as ps\.MSELoss\(prediction_key="):
        first_step(POINTS, loss=loss)
