"""Activation checkpointing, captured: the gradient of the step without it, and its memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import WIDTH, batches, member, run, seeded, stacked, training

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


class Block(nn.Module):
    """Four times as wide inside as outside."""

    def __init__(self, width, chance):
        super().__init__()
        self.inside, self.outside, self.chance = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), chance

    def forward(self, x):
        return x + self.outside(F.dropout(F.gelu(self.inside(x)), self.chance, self.training))


def whole(block, x):
    return block(x)


def by_argument(block, x):
    return checkpoint(block, x, use_reentrant=False)


def by_closure(block, x):
    return checkpoint(lambda: block(x), use_reentrant=False)


class Deep(nn.Module):
    """Residual blocks, each called as `call` has it."""

    def __init__(self, call, num_blocks=8, width=WIDTH, chance=0.25):
        super().__init__()
        self.call, self.blocks = call, nn.ModuleList(Block(width, chance) for _ in range(num_blocks))

    def forward(self, x):
        for block in self.blocks:
            x = F.dropout(self.call(block, x), 0.1, self.training)
        return x


# --- the gradient ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", [by_argument, by_closure])
def test_checkpointing_changes_no_gradient_around_dropout(call, backend):
    plain, other = (training(seeded(Deep, how, num_blocks=2), ps.sgd(0.1)) for how in (whole, call))
    data = batches(2)
    found = run(ps.compile(other.step, donate=True, backend=backend, on_recompile="error"), other.init(), data)
    # compilers sum in another order
    assert_trees_close(found, run(plain.step, plain.init(), data), rtol=1e-12, atol=1e-12)


def test_checkpointing_changes_no_bit_of_a_recorded_step():
    plain, other = (training(seeded(Deep, how, num_blocks=2), ps.sgd(0.1)) for how in (whole, by_argument))
    step = ps.compile(other.step, backend="eager")
    assert_trees_equal(run(step, other.init(), batches(2)), run(plain.step, plain.init(), batches(2)))


class Sequence(Deep):
    """The blocks in two regions."""

    def forward(self, x):
        return checkpoint_sequential(nn.Sequential(*self.blocks), 2, x, use_reentrant=False)


def test_a_sequence_in_regions_has_the_gradient_of_each_block_called():
    plain, other = training(seeded(Deep, whole, 4, chance=0.0), ps.sgd(0.1)), training(seeded(Sequence, whole, 4, chance=0.0), ps.sgd(0.1))
    no_dropout = {"forward": lambda model, batch: {"y": _in_turn(model.blocks, batch["x"])}}
    plain = plain.replace(**no_dropout)
    assert_trees_equal(ps.compile(other.step, backend="eager")(other.init(), batches(1)[0]), plain.step(plain.init(), batches(1)[0]))


def _in_turn(blocks, x):
    for block in blocks:
        x = block(x)
    return x


class Attending(nn.Module):
    """A region of two inputs and two outputs, of which one is a part of the loss, with attention and BatchNorm in it."""

    def __init__(self, call):
        super().__init__()
        self.call, self.project, self.norm = call, nn.Linear(4, 12), nn.BatchNorm1d(4)

    def mix(self, x, scale):
        query, key, value = self.project(self.norm(x)).view(1, -1, 3, 4).unbind(2)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)[0] * scale, query.sum()

    def forward(self, x):
        return self.call(self.mix, x, torch.tensor(2.0, dtype=x.dtype))[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_of_several_inputs_and_outputs_has_the_gradient_of_the_step_without(backend):
    regions = (lambda fn, *args: fn(*args), lambda fn, *args: checkpoint(fn, *args, use_reentrant=False))
    plain, other = (training(seeded(Attending, call), ps.sgd(0.1)) for call in regions)
    found, expected = ps.compile(other.step, backend=backend)(other.init(), batches(1)[0]), plain.step(plain.init(), batches(1)[0])
    # compilers sum in another order; statistics of BatchNorm move at the recomputation too, as they do in torch
    assert_trees_close(found[0].params, expected[0].params, rtol=1e-12, atol=1e-12)


def test_regions_are_recomputed_in_a_graph_for_a_range_of_sizes():
    plain, other = (training(seeded(Deep, how, num_blocks=2), ps.sgd(0.1)) for how in (whole, by_argument))
    step = ps.compile(other.step, backend="eager", on_recompile="error", dynamic={"*": {0: ("n", 2, 64)}})
    data = [batches(1, size=size)[0] for size in (8, 5, 30)]
    assert_trees_close(run(step, other.init(), data), run(plain.step, plain.init(), data), rtol=1e-12, atol=1e-12)
    assert step.explain()[0].sizes == ("2 <= n <= 64",)


def test_a_region_is_an_error_for_dynamo_that_says_what_to_do():
    torch._dynamo.reset()
    tr, (batch,) = training(seeded(Deep, by_argument, num_blocks=1)), batches(1)
    with pytest.raises(CaptureError, match=r"capture='dynamo' cannot recompute checkpointed regions; use capture='trace'"):
        ps.compile(tr.step, capture="dynamo", backend="eager")(tr.init(), batch)


@pytest.mark.parametrize("backend", ["uncaptured", *BACKENDS])
def test_regions_of_a_mapped_step_are_recomputed_with_the_draws_of_each_member(backend):
    tr, (batch,) = training(seeded(Deep, by_argument, num_blocks=2), ps.sgd(0.1)), batches(1)
    mapped, states = torch.func.vmap(tr.step, in_dims=(0, None)), [tr.init(seed) for seed in (0, 1)]
    found = (mapped if backend == "uncaptured" else ps.compile(mapped, backend=backend))(stacked(states), batch)
    for number, state in enumerate(states):
        # products of stacked matrices are summed in another order
        assert_trees_close(member(found, number), tr.step(state, batch), rtol=1e-12, atol=1e-12)


# --- the memory -----------------------------------------------------------------------------------------------------


def peak(step, *arguments):
    """The most bytes that a call had allocated at once, in whatever code, beyond those before it."""
    step(*arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(*arguments)
    live = most = 0
    for event in profiler.profiler.kineto_results.events():
        live += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, live)
    return most


def peak_of(call, chance, wrap):
    """Of a step of eight blocks, each of whose hidden values take 1 MiB."""
    tr = training(seeded(Deep, call, num_blocks=8, width=32, chance=chance).float(), ps.sgd(0.1))
    gen = torch.Generator().manual_seed(0)
    batch = {key: torch.randn(2048, 32, generator=gen) for key in ("x", "y")}
    return peak(wrap(tr.step), tr.init(), batch)


def by(backend):
    return lambda step: ps.compile(step, backend=backend)


@pytest.mark.parametrize(
    ("wrap", "call", "chance"),
    [
        pytest.param(lambda step: step, by_argument, 0.25, id="uncaptured"),
        pytest.param(by("eager"), by_closure, 0.25, id="eager"),
        pytest.param(by("aot_eager"), by_argument, 0.0, id="aot_eager"),
        pytest.param(by("inductor"), by_argument, 0.25, id="inductor", marks=pytest.mark.slow),
        pytest.param(by("inductor"), by_closure, 0.0, id="inductor, closure", marks=pytest.mark.slow),
    ],
)
def test_checkpointing_takes_less_than_half_of_the_memory(wrap, call, chance):
    without, found = (peak_of(how, chance, wrap) for how in (whole, call))
    assert without > 16 * 2**20  # at least two values of 1 MiB are kept of each block
    assert found < 0.5 * without
