"""Composition of loss terms, division once over all cuts, and errors that name the term."""

import math

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.core.loss import ComposedLoss, FunctionTerm, LossOutput, Sums, as_loss, divide, lookup, merge_sums, total_loss
from purestep.errors import LossError
from purestep.losses import ConstantWeight, EnergyMSELoss, ForceMSELoss, LinearWeight, MAELoss, MSELoss, PiecewiseWeight

ZERO = torch.tensor(0)


def weights_at(loss, step=0, epoch=0):
    effective, raw = loss.weights(torch.tensor(step), torch.tensor(epoch))
    return {name: float(w) for name, w in effective.items()}, {name: float(w) for name, w in raw.items()}


# --- the algebra --------------------------------------------------------------------------------------------------


def test_weights_are_normalised_by_default():
    effective, raw = weights_at(EnergyMSELoss() + 10.0 * ForceMSELoss())
    assert raw == {"EnergyMSELoss": 1.0, "ForceMSELoss": 10.0}
    assert effective == {"EnergyMSELoss": 1 / 11, "ForceMSELoss": 10 / 11}


def test_weights_stay_as_they_are_where_that_is_asked_for():
    loss = ComposedLoss([EnergyMSELoss(), ForceMSELoss()], weights=[1.0, 10.0], normalize_weights=False)
    assert weights_at(loss)[0] == {"EnergyMSELoss": 1.0, "ForceMSELoss": 10.0}


def test_components_of_a_composition_may_be_sums_and_take_a_schedule():
    loss = ComposedLoss([2.0 * MSELoss() + MAELoss(), ForceMSELoss()], weights=[3.0, LinearWeight(0.0, 4.0, 4)])
    assert weights_at(loss, step=1)[1] == {"MSELoss": 6.0, "MAELoss": 3.0, "ForceMSELoss": 1.0}


def test_terms_of_weight_zero_or_less_may_be_part_of_a_loss():
    assert weights_at(as_loss(2.0 * MSELoss() + -1.0 * MAELoss() + 0.0 * ForceMSELoss()))[0] == {
        "MSELoss": 2.0,
        "MAELoss": -1.0,
        "ForceMSELoss": 0.0,
    }


def test_a_lone_term_whose_schedule_begins_at_zero_weighs_zero():
    assert weights_at(as_loss(LinearWeight(0.0, 1.0, 5) * MSELoss()))[0] == {"MSELoss": 0.0}


def test_factors_multiply_from_either_side_and_into_sums():
    loss = 2 * (3.0 * MSELoss() + MAELoss() * 4)
    assert weights_at(loss)[1] == {"MSELoss": 6.0, "MAELoss": 8.0}


def test_sum_of_a_list_of_terms_is_their_composition():
    assert sum([MSELoss(), MAELoss()]) == MSELoss() + MAELoss()


def test_sums_of_sums_are_flat():
    loss = (MSELoss() + MAELoss()) + (EnergyMSELoss() + ForceMSELoss())
    assert loss.names == ("MSELoss", "MAELoss", "EnergyMSELoss", "ForceMSELoss")


def test_duplicate_names_are_numbered_and_given_names_kept():
    loss = MSELoss() + MAELoss(name="mine") + MSELoss(prediction_key="other")
    assert loss.names == ("MSELoss_0", "mine", "MSELoss_1")


def test_a_schedule_is_a_weight_evaluated_at_the_counts():
    loss = LinearWeight(0.0, 4.0, 4) * MSELoss() + MAELoss() * PiecewiseWeight((2,), (1.0, 3.0), per_epoch=True)
    assert weights_at(loss, step=1, epoch=0) == ({"MSELoss": 0.5, "MAELoss": 0.5}, {"MSELoss": 1.0, "MAELoss": 1.0})
    assert weights_at(loss, step=9, epoch=2)[1] == {"MSELoss": 4.0, "MAELoss": 3.0}


def test_a_schedule_may_be_any_function_of_the_counts():
    loss = MSELoss() * (lambda step_count, epoch_count: 0.5 ** step_count.double()) + MAELoss()
    assert weights_at(loss, step=2)[1] == {"MSELoss": 0.25, "MAELoss": 1.0}


def test_a_composition_is_a_value():
    one, other = (2.0 * MSELoss() + LinearWeight(0.0, 1.0, 5) * MAELoss() for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: True * MSELoss(), "MSELoss: a weight is a number or a schedule, got True"),
        (lambda: MSELoss() * "2", "MSELoss: a weight is a number or a schedule, got '2'"),
        (lambda: MSELoss() * math.inf, "MSELoss: a weight must be finite, got inf"),
        (lambda: MSELoss() * math.nan, "MSELoss: a weight must be finite, got nan"),
        (lambda: ConstantWeight(1.0) * (2.0 * MSELoss()), "a schedule times a weighted loss is ambiguous"),
        (lambda: LinearWeight(0.0, 1.0, 5) * (ConstantWeight(1.0) * MSELoss()), "a schedule times a weighted loss is ambiguous"),
        (lambda: 2.0 * (ConstantWeight(1.0) * MSELoss()), "put the factor 2.0 into the schedule"),
        (
            lambda: as_loss(-1.0 * MSELoss()),
            r"the weights \[-1\.0\] sum to -1\.0, which cannot be normalised; give one a positive weight, or normalize_weights=False",
        ),
        (lambda: as_loss(0.0 * MSELoss()), "sum to 0.0, which cannot be normalised"),
        (lambda: ComposedLoss(()), "needs at least one term"),
        (lambda: ComposedLoss([MSELoss(), MAELoss()], weights=[1.0]), "2 components and 1 weights; give one weight for each component"),
        (lambda: ComposedLoss(MSELoss().weighted(), normalize_weights=False) + ComposedLoss(MAELoss().weighted()), "choose one"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(make, message):
    with pytest.raises(LossError, match=message):
        make()


def test_adding_something_that_is_no_loss_is_a_type_error():
    with pytest.raises(TypeError):
        MSELoss() + 1.0
    with pytest.raises(LossError, match="expected a loss term, a sum of terms or a function"):
        as_loss(3)


# --- sums ---------------------------------------------------------------------------------------------------------


def test_a_division_by_nothing_is_zero_without_a_gradient():
    numerator = torch.tensor(0.0, requires_grad=True)
    value = divide(numerator, torch.tensor(0.0))
    assert value == 0
    assert torch.autograd.grad(value, numerator)[0] == 0


def test_merged_sums_add_and_join():
    parts = [Sums(torch.tensor(1.0), torch.tensor(2.0), torch.ones(2)), Sums(torch.tensor(3.0), torch.tensor(4.0), torch.zeros(1))]
    merged = merge_sums(parts)
    assert (merged.numerator, merged.denominator, merged.per_sample.tolist()) == (4, 6, [1, 1, 0])
    assert merge_sums([parts[0], parts[1]._replace(per_sample=None)]).per_sample is None


def test_a_composition_looks_up_each_term_by_its_keys():
    loss = MSELoss(prediction_key="a", target_key="b") + MAELoss(prediction_key="c", target_key="b")
    sums = loss.sums({"a": torch.ones(2), "c": torch.zeros(2)}, {"b": torch.zeros(2)}, {})
    assert [sums["MSELoss"].numerator, sums["MAELoss"].numerator] == [2, 0]
    assert loss.target_keys == ("b",)


def test_a_missing_prediction_or_target_names_the_term_and_what_is_there():
    with pytest.raises(LossError, match=r"loss term MSELoss: no prediction 'prediction'; there are \['a', 'b'\]"):
        as_loss(MSELoss()).sums({"b": ZERO, "a": ZERO}, {}, {})
    with pytest.raises(LossError, match=r"loss term MSELoss: no target 'target'; there are \[\]"):
        as_loss(MSELoss()).sums({"prediction": ZERO}, {}, {})


def test_a_field_of_a_batch_may_be_an_attribute():
    batch = ps.AtomicBatch(torch.zeros(1, 3), torch.ones(1), torch.zeros(1), torch.tensor([0, 1]))
    assert lookup(batch, "numbers", "here", "field") is batch.numbers
    with pytest.raises(LossError, match=r"here: no field 'energy'; there are \['positions', 'numbers', 'batch', 'ptr'\]"):
        lookup(batch, "energy", "here", "field")


def test_the_total_weighs_means():
    sums = {"a": Sums(torch.tensor(6.0), torch.tensor(3.0)), "b": Sums(torch.tensor(5.0), torch.tensor(0.0))}
    weights = {"a": torch.tensor(0.25, dtype=torch.float64), "b": torch.tensor(0.75, dtype=torch.float64)}
    total = total_loss(sums, weights)
    assert (total, total.dtype) == (0.5, torch.float32)
    output = LossOutput(total, sums, weights, weights, {})
    assert output.components == {"a": 2.0, "b": 0.0}
    assert output.with_penalty("decay", torch.tensor(1.0)).total == 1.5
    with pytest.raises(LossError, match="penalty 'decay' was added already"):
        output.with_penalty("decay", ZERO).with_penalty("decay", ZERO)


def test_a_term_of_a_user_is_a_function():
    def hinge(prediction, target, batch):
        values = torch.relu(1 - prediction * target)
        return values.sum(), torch.full_like(values.sum(), values.numel())

    term = FunctionTerm(hinge, prediction_key="score", target_key="sign", name="hinge")
    sums = (term + 2.0 * MSELoss()).names, term(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 1.0]), {})
    assert sums == (("hinge", "MSELoss"), Sums(torch.tensor(0.5), torch.tensor(2.0)))


# --- cutting: a line y = w x, whose loss is sum((w x)^2) / N, at w = 1 -----------------------------------------------

X = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
CUTS = [(slice(0, 3), slice(3, 4)), (slice(0, 1), slice(1, 4)), (slice(0, 2), slice(2, 4)), (slice(0, 4), slice(4, 4))]


class Line(nn.Module):
    """`y = w x`."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, batch):
        return {"prediction": self.w * batch["x"], "square": (self.w * batch["x"]).square()}


def part(cut):
    return {"x": X[cut], "target": torch.zeros_like(X[cut])}


@pytest.mark.parametrize("cut", CUTS)
def test_merged_cuts_have_the_gradient_of_the_whole(cut):
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    merged = merge_sums([MSELoss()(w * X[c], torch.zeros_like(X[c]), {}) for c in cut])
    value = divide(merged.numerator, merged.denominator)
    assert (value, torch.autograd.grad(value, w)[0]) == (7.5, 15.0)


def step_metrics(loss, batch, microbatches):
    training = ps.Training(Line(), loss=loss, optimizer=ps.sgd(0.1), microbatches=microbatches)
    state, metrics = training.step(training.init(), batch)
    return float(state.params["w"]), {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("cut", CUTS)
def test_a_step_that_cuts_its_batch_has_the_gradient_of_the_whole(cut):
    w, metrics = step_metrics(MSELoss(), tuple(part(c) for c in cut), len(cut))
    assert (metrics["loss/total"], metrics["update/grad_norm"]) == (7.5, 15.0)
    assert w == pytest.approx(1 - 0.1 * 15.0, rel=1e-15)


@pytest.mark.parametrize("cut", CUTS)
def test_a_composed_loss_is_exact_under_cuts_as_well(cut):
    loss = MSELoss() + LinearWeight(3.0, 0.0, 10) * MAELoss(prediction_key="square", mask_key="mask")
    batch = {**part(slice(0, 4)), "mask": torch.tensor([True, False, False, True])}
    whole = step_metrics(loss, batch, 1)
    parts = tuple({name: value[c] for name, value in batch.items()} for c in cut)
    assert step_metrics(loss, parts, len(parts)) == (pytest.approx(whole[0], rel=1e-12), pytest.approx(whole[1], rel=1e-12))
    assert whole[1]["loss/MAELoss/unweighted"] == (1 + 16) / 2
    assert whole[1]["loss/MAELoss/weight"] == 0.75


def test_a_batch_with_every_target_masked_moves_nothing():
    loss = MSELoss(mask_key="mask")
    w, metrics = step_metrics(loss, {**part(slice(0, 4)), "mask": torch.zeros(4, dtype=torch.bool)}, 1)
    assert (w, metrics["loss/total"], metrics["update/grad_norm"]) == (1.0, 0.0, 0.0)


def test_a_missing_label_that_is_not_ignored_is_caught_by_the_gate():
    training = ps.Training(Line(), loss=MSELoss(), optimizer=ps.chain(ps.skip_nonfinite(), ps.sgd(0.1)))
    batch = {"x": X, "target": torch.tensor([0.0, math.nan, 0.0, 0.0], dtype=torch.float64)}
    state, metrics = training.step(training.init(), batch)
    assert (state.params["w"], metrics["update/applied"]) == (1, 0)


def test_strict_dtypes_under_autocast_name_both_sides_and_a_policy_lets_them_pass():
    model = nn.Linear(2, 1)
    batch = {"x": torch.ones(3, 2), "target": torch.zeros(3, 1)}

    def run(loss):
        training = ps.Training(
            model, loss=loss, optimizer=ps.sgd(0.1), precision="bf16", forward=lambda m, batch: {"prediction": m(batch["x"])}
        )
        return training.step(training.init(), batch)[1]["loss/total"]

    with pytest.raises(LossError, match=r"MSELoss: prediction is torch\.bfloat16 and target is torch\.float32; give dtype_policy="):
        run(MSELoss())
    assert run(MSELoss(dtype_policy="prediction_to_target")).dtype == torch.float32
