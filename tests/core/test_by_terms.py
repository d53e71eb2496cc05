"""Gradients term by term: with the weighted sum nothing changes, in any form; and what is not a sum acts on the whole batch."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.core.ranks import Ranks
from purestep.distributed.parallel import over_ranks
from purestep.losses.gradient_surgery import project_conflicts, weighted_sum
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import (
    WIDTH,
    Plain,
    batches,
    forward,
    mean_squared_error,
    member,
    molecules,
    potential_training,
    run,
    seeded,
    stacked,
    training,
)

TWO_TERMS = 1.0 * mean_squared_error(mask_key="there", name="masked") + 10.0 * ps.MAELoss(prediction_key="y", target_key="x", name="other")


def masked(count, size=7):
    return [{**batch, "there": torch.arange(size) % 3 > 0} for batch in batches(count, size=size)]


def pair_of(combine=weighted_sum, **changes):
    """The same training, with and without surgery."""
    options = {"loss": TWO_TERMS, "optimizer": ps.sgd(0.1)} | changes
    return training(seeded(Plain), **options), training(seeded(Plain), **options, combine_gradients=combine)


VARIANTS = {
    "plain": {},
    "func engine": {"grad_engine": "func"},
    "three cuts": {"microbatches": 3},
    "one term": {"loss": mean_squared_error()},
    "a schedule": {"loss": ps.LinearWeight(0.0, 5.0, num_steps=4) * mean_squared_error() + ps.MAELoss(prediction_key="y", target_key="x")},
    "loss scale": {"optimizer": ps.chain(ps.dynamic_loss_scale(1024.0), ps.clip_by_global_norm(0.1), ps.sgd(0.1))},
    "penalty": {"hooks": (ps.hooks.penalty(lambda params: 0.1 * params["out.weight"].square().sum()),)},
    "penalty and cuts": {"hooks": (ps.hooks.penalty(lambda params: 0.1 * params["out.weight"].square().sum()),), "microbatches": 2},
    "window": {"optimizer": ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.adamw(0.1)), "hooks": (ps.hooks.ema(0.9),)},
}


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_the_weighted_sum_is_the_ordinary_step(name):
    plain, by_terms = pair_of(**VARIANTS[name])
    data = masked(4)
    # sums in another order
    assert_trees_close(run(by_terms.step, by_terms.init(), data), run(plain.step, plain.init(), data), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["autograd", "func"])
def test_the_weighted_sum_is_the_ordinary_step_for_energies_and_forces(engine):
    options = {"optimizer": ps.sgd(0.1), "grad_engine": engine}
    plain, by_terms = potential_training("painn", **options), potential_training("painn", **options, combine_gradients=weighted_sum)
    assert_trees_close(by_terms.step(by_terms.init(), molecules()), plain.step(plain.init(), molecules()), rtol=1e-12, atol=1e-12)


def test_surgery_is_the_same_captured_compiled_and_mapped():
    torch._dynamo.reset()
    _, tr = pair_of(
        project_conflicts, loss=mean_squared_error() + -1.0 * ps.MAELoss(prediction_key="y", target_key="y") + mean_squared_error(name="b")
    )
    batch, states = masked(1)[0], [tr.init(seed) for seed in (0, 1)]
    expected = tr.step(states[1], batch)
    assert_trees_equal(ps.compile(tr.step, backend="eager")(states[1], batch), expected)
    # fused otherwise: rounding only
    assert_trees_close(torch.compile(tr.step, fullgraph=True, backend="aot_eager")(states[1], batch), expected, rtol=1e-10, atol=1e-12)
    together = torch.func.vmap(tr.step, in_dims=(0, None))(stacked(states), batch)
    assert_trees_close(member(together, 1), expected, rtol=1e-10, atol=1e-12)


def test_the_function_gets_unweighted_gradients_of_the_whole_batch_and_the_weights():
    seen = []

    def look(gradients, weights):
        seen.append((gradients, [float(w) for w in weights]))
        return weighted_sum(gradients, weights)

    loss = ps.ComposedLoss(TWO_TERMS.terms, normalize_weights=False)
    _, tr = pair_of(look, loss=loss, microbatches=3, optimizer=ps.chain(ps.dynamic_loss_scale(1024.0), ps.sgd(0.1)))
    batch = masked(1)[0]
    tr.step(tr.init(), batch)
    (gradients, weights), *_ = seen
    assert weights == [1.0, 10.0]
    for number, name in enumerate(("masked", "other")):
        alone = training(seeded(Plain), ps.sgd(1.0), loss=TWO_TERMS.terms[number].term)
        state = alone.init()
        expected = ps.tree.map(lambda old, new: old - new, state.params, alone.step(state, batch)[0].params)
        assert_trees_close(gradients[number], expected, rtol=1e-11, atol=1e-13), name


def test_the_model_runs_once_however_many_terms_there_are():
    calls = []

    def counted(model, batch):
        calls.append(1)
        return forward(model, batch)

    _, tr = pair_of(forward=counted)
    tr.step(tr.init(), masked(1)[0])
    assert len(calls) == 1


def test_leaves_that_no_term_reaches_stay_and_those_that_one_reaches_move():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.idle = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, batch):
            return {"a": self.a(batch["x"]), "b": self.b(batch["x"])}

    loss = ps.MSELoss(prediction_key="a", target_key="y", name="a") + ps.MSELoss(prediction_key="b", target_key="y", name="b")
    tr = ps.Training(seeded(Heads), loss=loss, optimizer=ps.adamw(0.1, weight_decay=0.5), combine_gradients=weighted_sum)
    state = tr.init()
    with pytest.warns(UserWarning, match=r"does not depend on idle\.bias, idle\.weight"):
        after, _ = tr.step(state, batches(1)[0])
    moved = {path for path, leaf in after.params.items() if not torch.equal(leaf, state.params[path])}
    assert moved == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_a_combination_of_another_structure_is_refused():
    _, tr = pair_of(lambda gradients, weights: {"out.weight": gradients[0]["out.weight"]})
    with pytest.raises(ValueError, match=r"combine_gradients: expected a tree with the leaves hidden\.bias, .* got out\.weight"):
        tr.step(tr.init(), masked(1)[0])


def world_of(size):
    """Ranks that are threads of this process; each sum waits for all of them."""
    barrier, given = threading.Barrier(size, timeout=30.0), [None] * size

    def sum_at(rank, vector):
        given[rank] = vector
        barrier.wait()
        total = torch.stack(given).sum(0)
        barrier.wait()
        return total

    return [Ranks(rank, size, functools.partial(sum_at, rank)) for rank in range(size)]


@pytest.mark.parametrize("combine", [weighted_sum, project_conflicts], ids=["weighted_sum", "project_conflicts"])
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("hooks", [(), VARIANTS["penalty"]["hooks"]], ids=["plain", "penalty"])
def test_surgery_among_ranks_with_unequal_shares_is_that_of_the_whole_batch(combine, microbatches, hooks):
    _, alone = pair_of(combine, hooks=hooks)
    data = masked(3)
    expected, metrics = run(alone.step, alone.init(), data)

    def train(ranks, rows):
        tr = alone.replace(ranks=ranks, optimizer=over_ranks(ps.sgd(0.1), ranks), microbatches=microbatches)
        return run(tr.step, tr.init(), [{key: x[rows] for key, x in batch.items()} for batch in data])

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, world_of(2), [slice(0, 2), slice(2, None)]))
    for after, seen in found:
        # sums in another order
        assert_trees_close(after.params, expected.params, rtol=1e-12, atol=1e-12)
        assert seen["loss/total"].item() == pytest.approx(metrics["loss/total"].item(), rel=1e-12)
    assert_trees_equal(found[0][0].params, found[1][0].params)
