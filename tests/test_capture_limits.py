"""What a recorded graph could freeze or lose by mistake: numbers read on the host, hidden randomness, shared memory."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.errors import CaptureError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import batches, seeded, training


def captured(step, **options):
    return ps.compile(step, backend="eager", **options)


class Reads(nn.Module):
    """Branches on a number of its input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight * (2.0 if x[0, 0].item() > 0 else 1.0) * x


@ps.tree.node
class Slots:
    """A state of four leaves."""

    a: torch.Tensor
    b: torch.Tensor
    same: torch.Tensor
    c: torch.Tensor


def slots():
    return Slots(*(torch.full((2,), float(i)) for i in range(4)))


def test_donation_wants_a_result_of_the_same_form():
    step = captured(lambda state, batch: ((state, state), {}), donate=True)
    with pytest.raises(CaptureError, match="must have the structure, shapes and dtypes"):
        step(torch.ones(3), torch.ones(4))


def test_a_state_that_is_a_plain_dict_can_be_donated():
    step = captured(lambda state, batch: ({"a": state["a"] + batch}, {}), donate=True)
    assert step({"a": torch.ones(2)}, torch.ones(2))[0]["a"].tolist() == [2.0, 2.0]


def views(state, batch):
    """Leaves change places as views, which are other objects with the same memory."""
    return Slots(state.b[:], state.a.view(2), state.same[:], batch.view(2)), {"view": state.a[:1]}


def test_leaves_that_are_views_of_each_other_are_not_lost_when_memory_is_reused():
    batch = torch.full((2,), 9.0)
    expected = ps.tree.clone(views(slots(), batch))
    assert_trees_equal(captured(views, donate=True)(slots(), batch), expected)


def test_a_read_is_reported_with_the_line_of_the_model():
    tr, batch = training(seeded(Reads)), batches(1)[0]
    step = captured(tr.step, on_recompile="ignore")
    step(tr.init(), batch)
    assert "x[0, 0].item()" in step.explain()[0].host_reads[0]


def test_a_read_that_gives_nan_is_captured_once():
    step = captured(lambda state, x: (state, {"value": x * (x.sum() * float("nan")).item()}), on_recompile="ignore")
    for _ in range(3):
        step(torch.ones(1), torch.ones(3))
    assert len(step.explain()) == 1


def test_a_list_of_numbers_is_guarded():
    def doubled(state, x):
        return state, {"value": torch.tensor(x.tolist()) * 2}

    step = captured(doubled, on_recompile="ignore")
    for x in (torch.ones(3), 2 * torch.ones(3), torch.ones(3)):
        assert_trees_equal(step(torch.ones(1), x)[1]["value"], 2 * x)
    assert len(step.explain()) == 2


def test_an_array_is_refused():
    with pytest.raises(CaptureError, match=r"turns a tensor into an array at .*x\.numpy"):
        captured(lambda state, x: (state, {"value": torch.from_numpy(x.numpy() * 2)}))(torch.ones(1), torch.ones(3))


VARYING = {
    "a size": lambda x, i: torch.zeros(int(i.max()) + 1).index_add(0, i, x),
    "a mask": lambda x, i: x[x > 0].sum() / x[x > 0].numel(),
    "a branch": lambda x, i: x.sum() if bool(x.sum() > 2) else x.prod(),
    "bincount": lambda x, i: torch.bincount(i).double().std(),
    "bincount with weights": lambda x, i: torch.bincount(i, x, minlength=2),
    "nonzero": lambda x, i: (x > 0).nonzero().double().mean(),
    "masked_select": lambda x, i: torch.masked_select(x, i > 0).mean(),
    "repeat_interleave": lambda x, i: x.repeat_interleave(i + 1),
    "writing under a mask": lambda x, i: x.clone().index_put((x > 0,), x[x > 0] * 3),
}


@pytest.mark.parametrize("name", sorted(VARYING))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_shapes_that_depend_on_values_are_never_frozen(name, backend):
    fn = VARYING[name]
    step = ps.compile(lambda state, batch: (state, {"value": fn(*batch)}), backend=backend, on_recompile="ignore")
    inputs = [([1.0, 2.0, -3.0], [0, 1, 1]), ([4.0, 5.0, -6.0], [0, 1, 1]), ([1.0, 2.0, 3.0], [0, 1, 2]), ([1.0, -2.0, -3.0], [0, 0, 1])]
    for x, i in inputs:
        batch = (torch.tensor(x), torch.tensor(i))
        assert_trees_equal(step(torch.ones(1), batch)[1]["value"], fn(*batch))


def test_tensors_that_a_function_closes_over_are_inputs():
    outside = torch.ones(3)
    step = captured(lambda state, x: (state, {"value": x * outside}))
    step(torch.ones(1), torch.ones(3))
    outside.mul_(5.0)
    assert step(torch.ones(1), torch.ones(3))[1]["value"].tolist() == [5.0, 5.0, 5.0]


def test_an_operator_that_draws_from_a_global_generator_is_refused():
    with pytest.raises(CaptureError, match=r"aten\.bernoulli.*global generator"):
        captured(lambda state, x: (state, {"value": torch.ops.aten.bernoulli(x)}))(torch.ones(1), torch.ones(3))


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like])
def test_draws_that_dynamo_hides_are_refused_by_its_capture(draw):
    tr = training(forward=lambda model, batch: {"y": model(batch["x"]) + draw(batch["x"])})
    with pytest.raises(CaptureError, match="hides from keyed randomness"):
        ps.compile(tr.step, capture="dynamo", backend="eager")(tr.init(), batches(1)[0])


@pytest.mark.parametrize("initialise", [nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_])
def test_initialisers_inside_a_step_draw_from_the_seed(initialise, untouched_globals):
    tr = training(forward=lambda model, batch: {"y": model(batch["x"]) + initialise(torch.empty(8, 4))})
    batch = batches(1)[0]
    assert_trees_equal(tr.step(tr.init(), batch), tr.step(tr.init(), batch))
    assert tr.step(tr.init(), batch)[1]["loss/total"] != tr.step(tr.init(seed=1), batch)[1]["loss/total"]


def test_a_wrapper_of_a_step_is_captured_as_it_is():
    tr, batch = training(), batches(1)[0]

    @functools.wraps(tr.step)
    def scaled(state, batch):
        return tr.step(state, {**batch, "x": 10 * batch["x"]})

    assert_trees_equal(captured(scaled)(tr.init(), batch), scaled(tr.init(), batch))
    assert_trees_equal(ps.fit(tr, [batch], num_epochs=1, step=scaled).state.params, scaled(tr.init(), batch)[0].params)


def test_a_state_whose_leaves_share_memory_cannot_be_donated():
    shared = torch.ones(2)
    step = captured(lambda state, batch: ({"a": state["a"] + batch, "b": state["b"]}, {}), donate=True, on_recompile="ignore")
    with pytest.raises(CaptureError, match=r"b and a share memory; pass ps\.tree\.clone"):
        step({"a": shared, "b": shared}, torch.ones(2))
    with pytest.raises(CaptureError, match="is expanded"):
        step({"a": torch.ones(1).expand(2), "b": torch.ones(2)}, torch.ones(2))


def test_a_recurrent_network_can_be_captured():
    tr = training(nn.LSTM(4, 4).double(), forward=lambda model, batch: {"y": model(batch["x"])[0]})
    batch = batches(1)[0]
    # recorded as its parts, which round otherwise than the fused kernel
    torch.testing.assert_close(captured(tr.step)(tr.init(), batch)[0].params, tr.step(tr.init(), batch)[0].params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [0.0, -0.0])
def test_zero_and_minus_zero_are_different_constants(sign):
    step = captured(lambda state, k: (state, {"value": torch.copysign(torch.ones(()), torch.tensor(k))}), on_recompile="ignore")
    step(torch.ones(1), 0.0)
    assert step(torch.ones(1), sign)[1]["value"].item() == (1.0 if str(sign) == "0.0" else -1.0)


def test_an_object_of_an_unknown_type_is_refused():
    with pytest.raises(CaptureError, match="neither a tensor nor a plain constant"):
        captured(lambda state, batch: (state, {}))(torch.ones(1), object())


def test_leaves_named_like_fields_of_an_optimizer_state_are_told_apart():
    optimizer = ps.chain(ps.accumulate(2), ps.adam(0.1))
    step = ps.make_step(lambda p, x: (p["w"] * x).square().mean(), optimizer)
    state = ps.init_state({"w": torch.ones(()), "weight": torch.ones(()), "count": torch.ones(())}, optimizer)
    plain = ps.make_step(lambda p, x: (p["w"] * x).square().mean(), optimizer)
    expected = ps.init_state({"w": torch.ones(())}, optimizer)
    with pytest.warns(UserWarning, match="does not depend on count, weight"):
        for _ in range(6):
            (state, _), (expected, _) = step(state, torch.ones(2)), plain(expected, torch.ones(2))
    assert torch.equal(state.params["w"], expected.params["w"])
    assert (state.params["weight"].item(), state.params["count"].item()) == (1.0, 1.0)


def test_gradients_flow_to_the_batch():
    step = ps.make_step(lambda p, b: ((p["w"] - b) ** 2).sum(), ps.sgd(0.1))
    state = ps.init_state({"w": torch.ones(2)}, ps.sgd(0.1))
    slope = torch.func.grad(lambda b: step(state, b)[0].params["w"].sum())(torch.zeros(2))
    assert torch.allclose(slope, torch.full((2,), 0.2))


def test_a_mean_of_unequal_cuts_counts_samples():
    x = torch.arange(1.0, 6.0, dtype=torch.float64).reshape(5, 1)
    whole, cut = (
        training(nn.Linear(1, 1).double(), loss=lambda p, b: p["y"].square().mean(), forward=lambda m, b: {"y": m(b)}, microbatches=k)
        for k in (1, 2)
    )
    one, two = (tr.evaluator()(tr.init(), x)[1] for tr in (whole, cut))
    assert one["loss"].denominator.item() == two["loss"].denominator.item() == 5.0
    same = dict(whole.init().params)
    state = dataclasses.replace(cut.init(), params=same)
    assert cut.step(state, x)[1]["loss/total"].item() == pytest.approx(whole.step(whole.init(), x)[1]["loss/total"].item(), rel=1e-14)


def test_an_embedding_that_writes_into_its_weight_is_refused():
    with pytest.raises(ps.errors.ModuleError, match="max_norm"):
        training(nn.Embedding(4, 3, max_norm=0.1))


def test_only_the_leaf_that_is_unreached_is_put_back():
    params = {"bias": torch.ones(1), "layer": {"bias": torch.ones(1)}}
    optimizer = ps.adamw(0.1, weight_decay=0.5)
    step = ps.make_step(lambda p, x: (p["layer"]["bias"] * x).square().mean(), optimizer)
    with pytest.warns(UserWarning, match="does not depend on bias"):
        state, _ = step(ps.init_state(params, optimizer), torch.ones(1))
    assert state.params["bias"].item() == 1.0
    assert state.params["layer"]["bias"].item() < 1.0


def test_what_a_graph_depends_on_from_outside_is_part_of_its_key():
    step = captured(lambda state, x: (state, {"value": x @ x}), on_recompile="ignore")
    x = torch.rand(4, 4)
    step(torch.ones(1), x)
    with torch.autocast("cpu", torch.bfloat16):
        assert step(torch.ones(1), x)[1]["value"].dtype == torch.bfloat16
    assert [record.reason.split(" changed")[0] for record in step.explain()] == ["first call", "autocast, default dtype or determinism"]


class Regions(nn.Module):
    """Dropout inside a checkpointed region, or the same without."""

    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed
        self.first, self.second, self.dropout = nn.Linear(4, 16), nn.Linear(16, 4), nn.Dropout(0.4)

    def region(self, x):
        return self.dropout(torch.tanh(self.second(self.dropout(torch.tanh(self.first(x))))))

    def forward(self, x):
        x = self.dropout(x)
        if self.checkpointed:
            return self.dropout(torch.utils.checkpoint.checkpoint(self.region, x, use_reentrant=False))
        return self.dropout(self.region(x))


@pytest.mark.parametrize("how", ["eager", "traced"])
def test_recomputing_a_region_gives_the_gradient_with_the_same_dropout(how):
    plain, regions = (training(seeded(Regions, checkpointed)) for checkpointed in (False, True))
    batch = batches(1)[0]
    step = captured(regions.step) if how == "traced" else regions.step
    assert_trees_equal(step(regions.init(), batch), plain.step(plain.init(), batch))


def test_a_state_given_away_is_refused_by_evaluate():
    tr, batch = training(), batches(1)[0]
    state = tr.init()
    captured(tr.step, donate=True)(state, batch)
    with pytest.raises(ps.errors.ConsumedStateError, match="evaluate"):
        tr.evaluate(state, batch)


@pytest.mark.parametrize("use", ["step", "end_epoch", "save"])
def test_a_state_given_away_is_refused_everywhere(use, tmp_path):
    tr, batch = training(), batches(1)[0]
    state = tr.init()
    captured(tr.step, donate=True)(state, batch)
    uses = {"step": lambda: tr.step(state, batch), "end_epoch": lambda: ps.end_epoch(state), "save": lambda: ps.save(tmp_path / "x", state)}
    with pytest.raises(ps.errors.ConsumedStateError, match=use):
        uses[use]()


def test_a_name_of_the_file_format_is_refused_when_it_is_saved(tmp_path):
    with pytest.raises(ps.errors.CheckpointSaveError, match="__metadata__"):
        ps.save(tmp_path / "x", ps.init_state({"__metadata__": torch.ones(2)}, ps.sgd(0.1)))


def test_fused_attention_is_kept():
    def attend(model, batch):
        x = model(batch["x"]).unsqueeze(0).unsqueeze(0)
        return {"y": torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)[0, 0]}

    tr, batch = training(forward=attend), batches(1)[0]
    step = captured(tr.step)
    assert_trees_equal(step(tr.init(), batch), tr.step(tr.init(), batch))
