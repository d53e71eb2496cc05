"""Operations with gradients of their own, and fused attention, are captured whole, with the gradients that they give."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_close
from tests.examples_of_models import batches, run, seeded, training

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def operations(step, *arguments):
    """Names of all operations that a call runs, in whatever code."""
    step(*arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step(*arguments)
    return {event.name() for event in profiler.profiler.kineto_results.events()}


# --- gradients of their own -----------------------------------------------------------------------------------------


class Straight(torch.autograd.Function):
    """Rounds; its gradient is three times that of the identity, so that no derivative of what it does can be taken for it."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.round()

    @staticmethod
    def backward(ctx, slope):
        return ctx.factor * slope, None


class Cubed(torch.autograd.Function):
    """`x**3` with the gradient of `x**2`, in the style that `torch.func` takes too."""

    @staticmethod
    def forward(x):
        return x**3, x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, slope, other):
        x, _ = ctx.saved_tensors
        return 2.0 * x * slope

    generate_vmap_rule = True


@torch.library.custom_op("purestep_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(2.0 * x.numpy())  # what no recording could see into


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("purestep_tests::doubled_backward", mutates_args=())
def doubled_backward(slope: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(5.0 * slope.numpy() + 0.0 * x.numpy())


@doubled_backward.register_fake
def _(slope, x):
    return torch.empty_like(x)


def keep_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


doubled.register_autograd(lambda ctx, slope: doubled_backward(slope, *ctx.saved_tensors), setup_context=keep_input)

# by name: the function, its value at x, and its gradient as it was given
FUNCTIONS = {
    "function": (lambda x: Straight.apply(x, 3.0), torch.round, lambda x: torch.full_like(x, 3.0)),
    "function with setup_context": (lambda x: Cubed.apply(x)[0], lambda x: x**3, lambda x: 2.0 * x),
    "operator": (doubled, lambda x: 2.0 * x, lambda x: torch.full_like(x, 5.0)),
}
X = torch.tensor([-1.4, 0.3, 2.2], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_a_gradient_of_its_own_has_that_gradient_captured(name, backend):
    function, value, slope = FUNCTIONS[name]
    optimizer = ps.sgd(1.0)
    step = ps.compile(ps.make_step(lambda w, x: function(w * x).sum(), optimizer), backend=backend, on_recompile="error")
    state, w = ps.init_state(torch.ones((), dtype=torch.float64), optimizer), torch.ones((), dtype=torch.float64)
    for x in (X, 2.0 * X):
        state, metrics = step(state, x)
        # kernels round otherwise
        torch.testing.assert_close(metrics["loss/total"], value(w * x).sum(), rtol=1e-14, atol=1e-14)
        w = w - (slope(w * x) * x).sum()
        torch.testing.assert_close(state.params, w, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_of_its_own_is_called_whole_forward_and_backward(backend):
    optimizer = ps.sgd(1.0)
    step = ps.compile(ps.make_step(lambda w, x: doubled(w * x).sum(), optimizer), backend=backend)
    found = operations(step, ps.init_state(torch.ones((), dtype=torch.float64), optimizer), X)
    assert {"purestep_tests::doubled", "purestep_tests::doubled_backward"} <= found


def test_a_function_with_setup_context_can_be_mapped_and_captured():
    optimizer = ps.sgd(1.0)
    step = ps.make_step(lambda w, x: Cubed.apply(w * x)[0].sum(), optimizer)
    states = ps.tree.map(lambda leaf: torch.stack([leaf, leaf]), ps.init_state(torch.ones((), dtype=torch.float64), optimizer))
    state, _ = ps.compile(torch.func.vmap(step), backend="eager")(states, torch.stack([X, 2.0 * X]))
    torch.testing.assert_close(state.params, torch.stack([1.0 - 2.0 * (k * X * k * X).sum() for k in (1.0, 2.0)]), rtol=1e-14, atol=1e-14)


def test_a_function_of_its_own_inside_a_checkpointed_region_is_recomputed():
    def loss(w, x):
        return torch.utils.checkpoint.checkpoint(lambda w: Cubed.apply(w * x)[0].sin().sum(), w, use_reentrant=False)

    optimizer = ps.sgd(1.0)
    step = ps.compile(ps.make_step(loss, optimizer), backend="eager")
    state, _ = step(ps.init_state(torch.ones((), dtype=torch.float64), optimizer), X)
    torch.testing.assert_close(state.params, 1.0 - ((X**3).cos() * 2.0 * X * X).sum(), rtol=1e-14, atol=1e-14)


# --- fused attention ------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 24)

    def forward(self, x):
        query, key, value = self.project(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).sum((0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"dynamic": {"*": {0: ("n", 2, 64)}}}, {"donate": True}], ids=["plain", "sizes", "donated"])
def test_attention_keeps_its_fused_kernel_forward_and_backward(backend, options):
    tr, data = training(seeded(Attention), ps.sgd(0.1)), batches(2, size=16)
    step = ps.compile(tr.step, backend=backend, **options)
    # kernels sum in another order
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-12)
    found = operations(lambda state, batch: step(ps.tree.clone(state), batch), tr.init(), data[0])
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert {fused, f"{fused}_backward"} <= found
    assert not found & {"aten::_softmax", "aten::softmax", "aten::bmm", "aten::baddbmm", "aten::_softmax_backward_data"}


def test_attention_with_dropout_is_the_one_that_is_written_out():
    def forward(model, batch):
        x = model(batch["x"])[None, None]
        return {"y": F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[0, 0]}

    tr, (batch,) = training(seeded(nn.Linear, 4, 4), ps.sgd(0.1), forward=forward), batches(1)
    assert "aten::_softmax" in operations(ps.compile(tr.step, backend="eager"), tr.init(), batch)
