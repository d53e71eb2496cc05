"""Capture: the numbers of the step itself, memory given away safely, one graph for a run, and clear words where it cannot be."""

import dataclasses
import warnings

import pytest
import torch
import torch.nn.functional as F

import purestep as ps
from purestep.errors import CaptureError, ConsumedStateError, RecompileError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import (
    POTENTIALS,
    Plain,
    batches,
    mean_squared_error,
    member,
    molecules,
    poisoned,
    potential_training,
    run,
    seeded,
    stacked,
    training,
)


def everything(**changes):
    """A training with all that has memory."""
    optimizer = ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(0.5), ps.adamw(1e-2, weight_decay=0.1))
    return training(optimizer=optimizer, hooks=(ps.hooks.ema(0.9), ps.hooks.loss_statistics()), **changes)


def captured(step, **options):
    return ps.compile(step, backend="eager", **options)


# --- the same numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("donate", [False, True])
def test_a_captured_run_has_the_bits_of_the_eager_one(donate, untouched_globals):
    tr, data = everything(), batches(6)
    data[3] = poisoned(data[3])
    step = captured(tr.step, donate=donate, on_recompile="error")
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert len(step.explain()) == 1


def test_a_captured_run_through_aot_autograd_has_the_eager_numbers():
    tr, data = everything(), batches(3)
    step = ps.compile(tr.step, backend="aot_eager", donate=True)
    # decompositions round otherwise
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_a_run_compiled_by_inductor_has_the_eager_numbers():
    tr, data = everything(), batches(3)
    step = ps.compile(tr.step, donate=True, on_recompile="error")
    # kernels sum in another order
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)


def test_capture_by_dynamo_has_the_eager_numbers():
    torch._dynamo.reset()
    tr, data = training(seeded(Plain)), batches(2)
    step = ps.compile(tr.step, capture="dynamo", backend="aot_eager")
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-12)
    assert step.explain()[0].engine == "dynamo"


def test_evaluate_and_other_functions_of_trees_can_be_captured():
    tr, batch = everything(), batches(1)[0]
    state = tr.init()
    assert_trees_equal(captured(tr.evaluate)(state, batch), tr.evaluate(state, batch))
    assert_trees_equal(captured(ps.tree.global_norm)({"a": torch.ones(4)}), torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(POTENTIALS))
def test_energies_and_forces_train_alike_eager_captured_and_mapped(name):
    tr, batch = potential_training(name), molecules()
    state = tr.init()
    expected = tr.step(state, batch)
    assert_trees_equal(captured(tr.step)(state, batch), expected)
    other = tr.step(state, molecules(seed=5))[0]
    together = torch.func.vmap(tr.step, in_dims=(0, None))(stacked([state, other]), batch)
    for number, alone in enumerate((expected, tr.step(other, batch))):
        # second derivatives sum in another order
        assert_trees_close(member(together, number), alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["schnet", pytest.param("painn", marks=pytest.mark.slow)])
def test_energies_and_forces_train_alike_compiled_whole(name):
    torch._dynamo.reset()
    tr, batch = potential_training(name), molecules()
    state = tr.init()
    compiled = torch.compile(tr.step, fullgraph=True, backend="aot_eager")
    # second derivatives sum in another order
    assert_trees_close(compiled(state, batch), tr.step(state, batch), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(POTENTIALS))
def test_a_captured_evaluation_gives_the_forces_of_the_eager_one_in_training_too(name):
    tr, batch = potential_training(name), molecules()
    state = tr.init()
    predictions, _ = tr.evaluate(state, batch)
    with torch.no_grad():
        assert torch.equal(captured(tr.evaluate)(state, batch)[0]["forces"], predictions["forces"])


def test_a_model_that_closes_over_a_tensor_sees_its_present_value():
    scale = torch.ones((), dtype=torch.float64)
    step = captured(lambda state, x: (state * scale, {}))
    first, _ = step(torch.ones(2, dtype=torch.float64), 0)
    scale.fill_(3.0)
    assert (first[0].item(), step(torch.ones(2, dtype=torch.float64), 0)[0][0].item()) == (1.0, 3.0)


# --- memory given away ----------------------------------------------------------------------------------------------


def test_a_donated_state_is_refused_afterwards_and_its_successor_lives_in_its_memory():
    tr, batch = everything(), batches(1)[0]
    step, state = captured(tr.step, donate=True), tr.init()
    pointers = {leaf.data_ptr() for leaf in ps.tree.leaves(state)}
    new, _ = step(state, batch)
    assert {leaf.data_ptr() for leaf in ps.tree.leaves(new)} == pointers
    for use in (lambda: step(state, batch), lambda: captured(tr.evaluate)(state, batch)):
        with pytest.raises(ConsumedStateError, match=r"keep a copy with ps\.tree\.clone"):
            use()


def test_a_copy_made_before_donation_stays_as_it_was():
    tr, batch = everything(), batches(1)[0]
    state = tr.init()
    kept, again = ps.tree.clone(state), ps.tree.clone(state)
    captured(tr.step, donate=True)(state, batch)
    assert_trees_equal(kept, again)
    assert_trees_equal(tr.step(kept, batch), tr.step(again, batch))


def test_metrics_of_a_donating_step_do_not_change_with_the_next_call():
    tr, data = everything(), batches(2)
    step = captured(tr.step, donate=True)
    state, metrics = step(tr.init(), data[0])
    before = ps.tree.clone(metrics)
    step(state, data[1])
    assert_trees_equal(metrics, before)


@ps.tree.node
class Slots:
    """A state of few leaves."""

    a: torch.Tensor
    b: torch.Tensor
    same: torch.Tensor
    from_batch: torch.Tensor
    fresh: torch.Tensor


def slots():
    return Slots(*(torch.full((2,), float(i)) for i in range(1, 6)))


def swap(state, batch):
    """Leaves change places; one stays; one is the batch; one is new."""
    return Slots(state.b, state.a, state.same, batch, state.fresh + state.a), {"old a": state.a, "batch": batch}


def test_leaves_that_change_places_are_not_lost_when_memory_is_reused():
    batch = torch.full((2,), 9.0)
    expected = ps.tree.clone(swap(slots(), batch))
    found = captured(swap, donate=True)(slots(), batch)
    assert_trees_equal(found, expected)
    found[0].from_batch.add_(1.0)
    assert batch.tolist() == [9.0, 9.0]


def test_donation_wants_a_result_of_the_same_shapes_and_dtypes():
    step = captured(lambda state, batch: (state.double(), {}), donate=True)
    with pytest.raises(CaptureError, match="must have the structure, shapes and dtypes"):
        step(torch.ones(3), torch.ones(4))


def test_dynamo_cannot_donate():
    step = ps.compile(lambda state, batch: (state + batch, {}), donate=True, capture="dynamo", backend="eager")
    with pytest.raises(CaptureError, match="capture='dynamo' cannot donate"):
        step(torch.ones(2), torch.ones(2))


# --- one capture for a run, and reasons for another -----------------------------------------------------------------


def test_a_run_with_schedules_gates_and_a_rate_set_by_hand_is_captured_once():
    optimizer = ps.chain(
        ps.skip_nonfinite(),
        ps.clip_by_global_norm(ps.schedules.linear(1.0, 0.1, 20)),
        ps.add_decayed_weights(0.1),
        ps.sgd(0.1, momentum=0.9),
    )
    hooks = (ps.hooks.ema(ps.hooks.warmup_decay(0.99)),)
    loss = ps.LinearWeight(1.0, 2.0, num_steps=9) * mean_squared_error()
    tr = training(seeded(Plain), optimizer, hooks=hooks, loss=loss)
    step, state = captured(tr.step, on_recompile="error"), tr.init()
    for number, batch in enumerate(batches(20)):
        state, _ = step(state, poisoned(batch) if number % 5 == 4 else batch)
        state = dataclasses.replace(state, opt_state=ps.set_hyperparams(state.opt_state, learning_rate=0.1 / (number + 1)))
    assert [record.reason for record in step.explain()] == ["first call"]
    assert state.counters.step_count.item() == 16


def test_a_rate_set_by_hand_is_used_by_the_graph_that_is_there():
    step = ps.make_step(lambda w, x: (w * x).sum(), ps.sgd(0.1))
    compiled, state, x = captured(step, on_recompile="error"), ps.init_state(torch.zeros(()), ps.sgd(0.1)), torch.tensor(1.0)
    first, _ = compiled(state, x)
    faster = dataclasses.replace(first, opt_state=ps.set_hyperparams(first.opt_state, learning_rate=1.0))
    assert compiled(faster, x)[0].params.item() == pytest.approx(-1.1)


def test_an_accumulating_step_is_captured_in_two_forms_and_no_more():
    tr, data = training(seeded(Plain), ps.chain(ps.accumulate(3), ps.adamw(0.1))), batches(9)
    step = captured(tr.step, on_recompile="error", donate=True)
    assert_trees_equal(run(step, tr.init(), data), run(tr.step, tr.init(), data))
    assert len(step.explain()) == 2


CHANGES = {
    "float64[6, 4] on cpu, is float64[5, 4] on cpu": lambda batch: ps.tree.map(lambda x: x[:5], batch),
    "float64[6, 4] on cpu, is float32[6, 4] on cpu": lambda batch: ps.tree.cast(batch, torch.float32),
    "the structure of the arguments changed": lambda batch: {**batch, "z": batch["x"]},
}


@pytest.mark.parametrize("reason", CHANGES)
def test_another_capture_says_what_differs(reason):
    step, batch = captured(lambda state, batch: (state, {"sum": batch["x"].sum()})), batches(1, size=6)[0]
    step(torch.ones(1), batch)
    with pytest.warns(UserWarning, match="the compiled step needs capture number 2") as caught:
        step(torch.ones(1), CHANGES[reason](batch))
    assert reason in str(caught[0].message)
    assert [reason in record.reason for record in step.explain()] == [False, True]


def test_another_learning_rate_of_another_dtype_is_never_read_as_garbage():
    step = captured(lambda state, batch: (state * batch, {}))
    step(torch.ones(2), torch.tensor(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert step(torch.ones(2), torch.tensor(0.5, dtype=torch.float64))[0].tolist() == [0.5, 0.5]


def test_one_capture_more_than_wanted_is_an_error_where_asked_for():
    step = captured(lambda state, batch: (state, {}), on_recompile="error")
    step(torch.ones(1), torch.ones(3))
    with pytest.raises(RecompileError, match="pad batches to few sizes"):
        step(torch.ones(1), torch.ones(4))
    step(torch.ones(1), torch.ones(3))


def test_earlier_captures_are_used_again():
    step = captured(lambda state, batch: (state + batch.sum(), {}), on_recompile="ignore")
    for size in (3, 4, 3, 4, 5):
        step(torch.ones(1), torch.ones(size))
    assert len(step.explain()) == 3


def test_a_number_in_a_batch_is_a_constant_of_its_graph():
    step = captured(lambda state, batch: (state * batch["factor"], {}), on_recompile="ignore")
    assert [step(torch.ones(()), {"factor": factor})[0].item() for factor in (2, 3, 2, 2.0, True)] == [2.0, 3.0, 2.0, 2.0, 1.0]
    assert len(step.explain()) == 4


@pytest.mark.parametrize("option", ["capture", "on_recompile", "backend"])
def test_unknown_choices_are_refused_at_once(option):
    with pytest.raises(ValueError, match=f"compile: {option}='nonsense' is unknown"):
        ps.compile(lambda state: state, **{option: "nonsense"})


@pytest.mark.parametrize("choices", [{"backend": "aot_eager"}, {"capture": "dynamo"}])
def test_options_of_inductor_are_refused_where_inductor_is_not_asked(choices):
    with pytest.raises(ValueError, match="options are inductor's"):
        ps.compile(lambda state: state, options={"max_autotune": True}, **choices)


@pytest.mark.slow
def test_options_reach_inductor():
    double = lambda x: (x * 2, {})  # noqa: E731
    assert ps.compile(double, options={"max_autotune": False})(torch.ones(2))[0].tolist() == [2.0, 2.0]
    with pytest.raises(AttributeError, match="no_such_option"):
        ps.compile(double, options={"no_such_option": 1})(torch.ones(2))


# --- reads on the host ----------------------------------------------------------------------------------------------


class Reads(Plain):
    """A forward that reads a number from a tensor."""

    def forward(self, x):
        return super().forward(x) * (2.0 if x[0, 0].item() > 0 else 1.0)


def test_a_number_read_in_the_forward_is_never_frozen_in_silence():
    tr, batch = training(seeded(Reads)), batches(1)[0]
    state, flipped = tr.init(), {**batch, "x": -batch["x"]}
    step = captured(tr.step, on_recompile="ignore")
    for data in (batch, flipped, batch):
        assert_trees_equal(step(state, data), tr.step(state, data))
    assert [len(record.host_reads) for record in step.explain()] == [1, 1]


def test_a_number_read_in_the_forward_is_an_error_for_dynamo_that_names_the_line():
    torch._dynamo.reset()
    tr = training(seeded(Reads))
    with pytest.raises(Exception, match=r"item"):
        torch.compile(tr.step, fullgraph=True, backend="aot_eager")(tr.init(), batches(1)[0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[x > 0].sum(),
        lambda x: torch.nonzero(x > 0).sum(),
        lambda x: x.masked_select(x > 0).sum(),
        lambda x: torch.bincount((x > 0).long().view(-1)).sum(),
        lambda x: torch.repeat_interleave(x[:, 0], (x[:, 0] > 0).long()).sum(),
        lambda x: F.one_hot((x > 0).long()).sum(),
        lambda x: torch.zeros(int((x > 0).sum())).sum() + x.sum(),
    ],
    ids=["mask", "nonzero", "masked_select", "bincount", "repeat_interleave", "one_hot", "size"],
)
def test_shapes_that_depend_on_values_are_recorded_with_their_sizes_guarded(fn):
    step = captured(lambda state, x: (state, {"value": fn(x)}), on_recompile="ignore")
    for batch in batches(3):
        assert_trees_equal(step(torch.ones(1), batch["x"])[1]["value"], fn(batch["x"]))


def test_a_step_that_cannot_be_recorded_says_so():
    step = captured(lambda state, batch: (state + 1 if batch.untyped_storage()[0] else state, {}))
    with pytest.raises(CaptureError, match=r"could not be recorded at .*test_capture\.py:\d+ \(step = captured"):
        step(torch.ones(1), torch.ones(3))


def test_a_leaf_that_cannot_be_part_of_a_graph_is_named():
    class Unhashable:
        __hash__ = None

    with pytest.raises(CaptureError, match="a leaf of type Unhashable is neither a tensor nor a plain constant"):
        captured(lambda state, batch: state)(torch.ones(1), Unhashable())


# --- checkpointed regions -------------------------------------------------------------------------------------------


class Checkpointed(Plain):
    """A hidden layer with dropout that is recomputed in the backward."""

    def forward(self, x):
        hidden = lambda x: F.dropout(self.hidden(x).tanh(), 0.5)  # noqa: E731
        return self.out(torch.utils.checkpoint.checkpoint(hidden, x, use_reentrant=False))


class Unchecked(Plain):
    def forward(self, x):
        return self.out(F.dropout(self.hidden(x).tanh(), 0.5))


def test_recomputation_draws_the_masks_of_the_forward_eager_and_captured():
    tr, plain, batch = training(seeded(Checkpointed), ps.sgd(0.1)), training(seeded(Unchecked), ps.sgd(0.1)), batches(1)[0]
    state = tr.init()
    expected = plain.step(plain.init(), batch)
    assert_trees_equal(tr.step(state, batch), expected)
    assert_trees_equal(captured(tr.step)(state, batch), expected)
