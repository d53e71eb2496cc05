"""Terms of the loss that depend on the parameters alone, and how often a hook acts."""

import pytest
import torch

import purestep as ps
from purestep.errors import HookError
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import Plain, batches, run, seeded, training

PARAMS = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64), "b": torch.tensor([3.0], dtype=torch.float64)}
NOTHING = torch.zeros(4, dtype=torch.float64)


def no_loss(params, batch):
    return sum((0.0 * leaf).sum() for leaf in ps.tree.leaves(params)) + batch.sum()


def step_with(hook, **options):
    return ps.make_step(no_loss, ps.sgd(0.1), (hook,), **options), ps.init_state(PARAMS, ps.sgd(0.1), (hook,))


def test_a_penalty_is_in_the_loss_in_the_metrics_and_in_the_gradient():
    step, state = step_with(ps.hooks.penalty(lambda params: 0.5 * params["w"].square().sum(), "decay"))
    after, metrics = step(state, NOTHING)
    assert (metrics["loss/decay"].item(), metrics["loss/total"].item()) == (2.5, 2.5)
    assert torch.allclose(after.params["w"], 0.9 * PARAMS["w"], rtol=1e-15)
    assert torch.equal(after.params["b"], PARAMS["b"])


def test_a_penalty_is_counted_once_however_the_batch_is_cut():
    hook = ps.hooks.penalty(lambda params: ps.tree.global_norm(params))
    results = []
    for parts in (1, 2, 4):
        tr = training(seeded(Plain), ps.sgd(0.1), hooks=(hook,), microbatches=parts)
        results.append(tr.step(tr.init(), batches(1)[0]))
    for state, metrics in results[1:]:
        # sums of few numbers in another order
        assert_trees_close((state.params, metrics), (results[0][0].params, results[0][1]), rtol=1e-12, atol=1e-12)


def test_consolidation_pulls_each_parameter_back_by_its_importance():
    fisher = {"w": torch.tensor([10.0, 0.0], dtype=torch.float64)}
    anchor = {"w": torch.tensor([0.0, 0.0], dtype=torch.float64)}
    step, state = step_with(ps.hooks.elastic_weight_consolidation(fisher, 0.5, anchor, name="ewc"))
    after, metrics = step(state, NOTHING)
    # 0.5 / 2 * 10 * 1^2; its slope 0.5 * 10 * 1 moves w[0] by -0.5
    assert metrics["loss/ewc"].item() == pytest.approx(2.5, rel=1e-15)
    assert after.params["w"].tolist() == pytest.approx([0.5, 2.0], rel=1e-15)


def test_consolidation_begins_at_the_parameters_of_init_and_its_strength_is_a_leaf():
    hook = ps.hooks.elastic_weight_consolidation({"w": torch.ones(2, dtype=torch.float64)}, 0.5)
    step, state = step_with(hook)
    assert step(state, NOTHING)[1]["loss/elastic_weight_consolidation"].item() == 0.0
    stronger = ps.set_hyperparams(state.hook_state, strength=4.0)[hook.name]
    assert stronger.strength.value.item() == 4.0


@pytest.mark.parametrize(
    ("fisher", "message"),
    [({"v": torch.ones(2)}, "'v', which is no parameter"), ({"w": torch.ones(3)}, r"w is \(3,\) in fisher, \(2,\) as parameter")],
)
def test_consolidation_refuses_what_does_not_fit_the_parameters(fisher, message):
    with pytest.raises(HookError, match=message):
        step_with(ps.hooks.elastic_weight_consolidation(fisher, 1.0))


def test_a_hook_with_a_period_acts_in_every_so_many_th_batch():
    stages = frozenset({ps.Stage.BEFORE_BATCH, ps.Stage.AFTER_BATCH})
    counting = ps.Hook("count", stages, lambda state: torch.tensor(0), lambda count, ctx: (count + 1, ctx))
    hook = ps.hooks.every(counting, 3)
    step, state = step_with(hook)
    for done, expected in enumerate((0, 0, 2, 2, 2, 4), start=1):
        state, _ = step(state, NOTHING)
        assert state.hook_state["count"].item() == expected, done


def test_a_hook_with_a_period_replaces_nothing_in_between():
    noisy = ps.hooks.every(ps.hooks.input_noise(0.1, "x"), 2)
    data = batches(2)
    tr, plain = training(seeded(Plain), hooks=(noisy,)), training(seeded(Plain))
    first, first_plain = tr.step(tr.init(), data[0])[0], plain.step(plain.init(), data[0])[0]
    assert_trees_equal(first.params, first_plain.params)
    second, second_plain = tr.step(first, data[1])[0], plain.step(first_plain, data[1])[0]
    assert torch.any(second.params["out.weight"] != second_plain.params["out.weight"])


def test_a_penalty_with_a_period_is_zero_in_between():
    hook = ps.hooks.every(ps.hooks.penalty(lambda params: params["w"].square().sum()), 2)
    step, state = step_with(hook)
    after, metrics = step(state, NOTHING)
    assert (metrics["loss/penalty"].item(), metrics["loss/total"].item()) == (0.0, 0.0)
    assert_trees_equal(after.params, state.params)
    _, metrics = step(after, NOTHING)
    assert (metrics["loss/penalty"].item(), metrics["loss/total"].item()) == (5.0, 5.0)


def test_a_period_of_zero_is_refused():
    with pytest.raises(ValueError, match="num_batches must be at least 1"):
        ps.hooks.every(ps.hooks.ema(), 0)


def test_hooks_shipped_run_together_and_none_disturbs_another():
    hooks = (ps.hooks.ema(0.9), ps.hooks.swa(), ps.hooks.loss_statistics(), ps.hooks.gradient_norm(), ps.hooks.gradient_noise_scale(2))
    together = training(hooks=hooks)
    state, _ = run(together.step, together.init(), batches(3))
    for hook in hooks:
        alone = training(hooks=(hook,))
        assert_trees_equal(run(alone.step, alone.init(), batches(3))[0].hook_state[hook.name], state.hook_state[hook.name])
