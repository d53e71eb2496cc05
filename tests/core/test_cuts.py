"""A batch cut into parts gives the result of the whole, for losses of one term and of several."""

import pytest
import torch

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import Plain, batches, forward, mean_squared_error, molecules, potential_training, run, seeded, training

MASKED = mean_squared_error(mask_key="mask", name="masked")
LOSSES = {
    "one term": mean_squared_error(),
    "one masked term": MASKED,
    "two terms": 1.0 * MASKED + 10.0 * ps.MAELoss(prediction_key="y", target_key="x", name="absolute"),
    "weights as they are": ps.ComposedLoss((2.0 * MASKED + 3.0 * mean_squared_error()).terms, normalize_weights=False),
    "a schedule": ps.LinearWeight(1.0, 5.0, num_steps=4) * MASKED + 1.0 * mean_squared_error(),
}


def ragged(size=7):
    """Samples of which some have many valid elements and some none."""
    batch = batches(1, size=size)[0]
    return {**batch, "mask": torch.arange(size * 4).view(size, 4) % 5 < torch.arange(size).unsqueeze(1)}


def parts_of(batch, *bounds):
    return tuple({key: value[i:j] for key, value in batch.items()} for i, j in zip((0, *bounds), (*bounds, 7), strict=True))


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_a_cut_batch_gives_loss_gradient_and_components_of_the_whole(name, parts):
    whole, cut = (training(seeded(Plain), ps.sgd(0.1), loss=LOSSES[name], microbatches=k) for k in (1, parts))
    batch = ragged()
    (one, metrics), (other, cut_metrics) = whole.step(whole.init(), batch), cut.step(cut.init(), batch)
    # sums of few numbers in another order
    assert_trees_close((other.params, cut_metrics), (one.params, metrics), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bounds", [(3,), (1,), (6,)])
def test_parts_may_be_given_and_be_of_any_size(bounds):
    whole, cut = (training(seeded(Plain), ps.sgd(0.1), loss=LOSSES["two terms"], microbatches=k) for k in (1, 2))
    batch = ragged()
    expected, _ = whole.step(whole.init(), batch)
    assert_trees_close(cut.step(cut.init(), parts_of(batch, *bounds))[0].params, expected.params, rtol=1e-12, atol=1e-12)


def test_a_part_without_any_label_adds_nothing():
    batch = ragged()
    batch["mask"][:3] = False
    whole, cut = (training(seeded(Plain), ps.sgd(0.1), loss=MASKED, microbatches=k) for k in (1, 2))
    expected, metrics = whole.step(whole.init(), batch)
    after, cut_metrics = cut.step(cut.init(), parts_of(batch, 3))
    assert_trees_close((after.params, cut_metrics), (expected.params, metrics), rtol=1e-12, atol=1e-12)


def test_a_batch_without_any_label_moves_nothing_and_is_finite():
    batch = ragged()
    batch["mask"][:] = False
    tr = training(seeded(Plain), ps.sgd(0.1), loss=MASKED, microbatches=2)
    after, metrics = tr.step(tr.init(), batch)
    assert_trees_equal(after.params, tr.init().params)
    assert metrics["loss/total"].item() == 0.0


@pytest.mark.parametrize("bounds", [(2,), (5,)])
def test_a_window_of_unequal_batches_is_their_union_for_a_loss_of_one_term(bounds):
    batch = ragged()
    whole = training(seeded(Plain), ps.sgd(0.1), loss=MASKED)
    window = training(seeded(Plain), ps.chain(ps.accumulate(2), ps.sgd(0.1)), loss=MASKED)
    expected, _ = whole.step(whole.init(), batch)
    after, _ = run(window.step, window.init(), parts_of(batch, *bounds))
    assert_trees_close(after.params, expected.params, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["autograd", "func"])
def test_molecules_cut_into_parts_train_alike(engine):
    batch = molecules((4, 3, 2))
    whole, cut = (potential_training("schnet", optimizer=ps.sgd(0.1), microbatches=k, grad_engine=engine) for k in (1, 3))
    expected, metrics = whole.step(whole.init(), batch)
    after, cut_metrics = cut.step(cut.init(), batch)
    assert_trees_close((after.params, cut_metrics), (expected.params, metrics), rtol=1e-12, atol=1e-12)


def test_parts_draw_masks_of_their_own():
    class Masks(Plain):
        def forward(self, x):
            return torch.nn.functional.dropout(torch.ones_like(x), 0.5) + 0.0 * super().forward(x)

    seen = []

    def record(state, ctx):
        seen.append(ctx.predictions["y"].detach())
        return state, ctx

    hook = ps.Hook("record", frozenset({ps.Stage.AFTER_FORWARD}), lambda state: (), record)
    tr = training(seeded(Masks), ps.sgd(0.0), hooks=(hook,), microbatches=2, forward=forward)
    batch = batches(1, size=200)[0]
    tr.step(tr.init(), batch)
    agreement = (seen[0] == seen[1]).double().mean().item()
    # 0.5 with a deviation of 0.025
    assert 0.4 < agreement < 0.6


def test_batchnorm_statistics_of_a_cut_batch_are_those_of_its_parts_in_order():
    batch = batches(1)[0]
    cut = training(microbatches=2)
    halves = [{key: value[part] for key, value in batch.items()} for part in (slice(0, 4), slice(4, 8))]
    after, _ = cut.step(cut.init(), batch)
    frozen = training(optimizer=ps.sgd(0.0))
    expected, _ = run(frozen.step, frozen.init(), halves)
    assert_trees_close(after.buffers, expected.buffers, rtol=1e-12, atol=1e-14)


def test_a_cut_step_is_the_same_traced_and_compiled():
    torch._dynamo.reset()
    tr = training(seeded(Plain), loss=LOSSES["two terms"], microbatches=2)
    state, batch = tr.init(), ragged(8)
    expected = tr.step(state, batch)
    assert_trees_equal(ps.compile(tr.step, backend="eager")(state, batch), expected)
    assert_trees_close(torch.compile(tr.step, fullgraph=True, backend="aot_eager")(state, batch), expected, rtol=1e-10, atol=1e-12)


def relabelling():
    """A hook that takes the labels of every second sample away, as a language model hides words."""

    def update(state, ctx):
        hidden = torch.arange(len(ctx.batch["y"])) % 2 == 0
        return state, ctx.replace(batch={**ctx.batch, "y": torch.where(hidden[:, None], float("nan"), ctx.batch["y"])})

    return ps.Hook("relabelling", frozenset({ps.Stage.BEFORE_FORWARD}), lambda state: {}, update)


def test_denominators_of_cuts_are_those_of_what_the_hooks_left():
    terms = [ps.MSELoss(prediction_key="y", target_key="y", ignore_nonfinite=True, name=name) for name in ("one", "other")]
    loss, batch = terms[0] + 3.0 * terms[1], batches(1)[0]
    whole, cut = (training(seeded(Plain), ps.sgd(0.1), loss=loss, hooks=[relabelling()], microbatches=k) for k in (1, 2))
    (one, first), (two, second) = (tr.step(tr.init(), batch) for tr in (whole, cut))
    # the cuts add in another order
    torch.testing.assert_close(one.params, two.params, rtol=0, atol=1e-14)
    assert first["loss/total"].item() == pytest.approx(second["loss/total"].item(), rel=1e-13)
