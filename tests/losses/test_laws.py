"""What must hold for every term in the table."""

import dataclasses
import inspect

import pytest
import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core import tree
from purestep.core.loss import LossTerm, Sums, merge_sums
from purestep.errors import LossError
from purestep.losses import LOSSES
from tests.losses.loss_examples import (
    OF_ERRORS,
    TERMS,
    WITH_GAPS,
    assert_close,
    collect,
    example,
    make_samples,
    mean,
    mean_and_grad,
    padding_sample,
    spoil_first_label,
)

over_the_terms = pytest.mark.parametrize("name", TERMS)
over_terms_of_errors = pytest.mark.parametrize("name", OF_ERRORS)
with_any_padding = pytest.mark.parametrize("fill", [float("nan"), 7.0])  # NaN alone might be taken for a missing label
over_terms_with_gaps = pytest.mark.parametrize("name", WITH_GAPS)


def test_every_term_of_the_table_has_an_example():
    terms = {name for name, made in LOSSES.items() if inspect.isclass(made)}
    assert {type(variant.term).__name__ for variant in TERMS.values()} == terms


@over_the_terms
def test_a_term_is_a_frozen_hashable_value(name):
    term, _ = example(name)
    assert isinstance(term, LossTerm)
    assert hash(term) == hash(dataclasses.replace(term))
    with pytest.raises(dataclasses.FrozenInstanceError):
        term.name = "other"


@over_the_terms
def test_inputs_stay_as_they_are_and_outputs_repeat(name, untouched_globals):
    term, call = example(name)
    before = tree.clone(call)
    first, second = term(*call), term(*call)
    assert_close((call, first), (before, second), rtol=0, atol=0)


@over_the_terms
def test_sums_are_0d_and_there_is_a_value_for_each_sample(name):
    term, call = example(name)
    sums = term(*call)
    assert (sums.numerator.shape, sums.denominator.shape, sums.per_sample.shape) == ((), (), (4,))
    assert {part.dtype for part in sums} == {torch.float64}
    assert not sums.per_sample.requires_grad


@over_terms_of_errors
def test_equal_prediction_and_target_give_exactly_zero_and_a_zero_gradient(name):
    term, (_, target, batch) = example(name)
    value, grad = mean_and_grad(term, (target, target, batch))
    assert value == 0
    assert torch.nan_to_num(grad, nan=1.0).abs().max() == 0


@over_the_terms
def test_gradients_agree_with_finite_differences(name):
    term, (prediction, *rest) = example(name)
    prediction = torch.nan_to_num(prediction).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: mean(term(p, *rest)), prediction)


@over_the_terms
def test_the_order_of_samples_does_not_matter(name):
    term, layout = TERMS[name]
    samples = make_samples(layout)
    order = [2, 0, 3, 1]
    one, other = term(*collect(layout, samples)), term(*collect(layout, [samples[i] for i in order]))
    assert_close(mean(other), mean(one))
    assert_close(other.per_sample, one.per_sample[order])


@over_the_terms
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_sums_over_cuts_merge_to_the_sums_of_the_whole(name, cut):
    term, layout = TERMS[name]
    samples = make_samples(layout)
    whole = term(*collect(layout, samples))
    merged = merge_sums([term(*collect(layout, samples[:cut])), term(*collect(layout, samples[cut:]))])
    assert_close(merged, whole)


@over_the_terms
@with_any_padding
def test_padding_changes_nothing(name, fill):
    term, layout = TERMS[name]
    samples = make_samples(layout)
    plain, padded = collect(layout, samples), collect(layout, [*samples, padding_sample(layout, fill)])
    one, other = term(*plain), term(*padded)
    assert torch.equal(other.denominator, one.denominator)
    assert torch.equal(other.per_sample[:4], one.per_sample)
    assert other.per_sample[4].isnan()
    assert_close(other.numerator, one.numerator)  # not bitwise: a longer row is summed in another order


@over_the_terms
@with_any_padding
def test_padding_gets_exactly_no_gradient_even_if_it_is_not_finite(name, fill):
    term, layout = TERMS[name]
    samples = make_samples(layout)
    plain, padded = collect(layout, samples), collect(layout, [*samples, padding_sample(layout, fill)])
    (_, grad), (_, with_padding) = mean_and_grad(term, plain), mean_and_grad(term, padded)
    assert_close(with_padding[: len(grad)], grad)
    assert with_padding[len(grad) :].abs().max() == 0


@over_the_terms
@with_any_padding
def test_nothing_but_padding_gives_exactly_zero_without_a_gradient(name, fill):
    term, layout = TERMS[name]
    call = collect(layout, [padding_sample(layout, fill), padding_sample(layout, fill)])
    sums = term(*call)
    assert (sums.numerator, sums.denominator, mean(sums)) == (0, 0, 0)
    assert sums.per_sample.isnan().all()
    assert mean_and_grad(term, call)[1].abs().max() == 0


@over_terms_with_gaps
def test_a_sample_without_a_label_counts_in_neither_sum(name):
    term, layout = TERMS[name]
    samples = spoil_first_label(layout, make_samples(layout))
    some, labelled = collect(layout, samples), collect(layout, samples[1:])
    one, other = term(*some), term(*labelled)
    assert_close(one[:2], other[:2])
    assert one.per_sample[0].isnan()
    assert_close(one.per_sample[1:], other.per_sample)
    assert mean_and_grad(term, some)[1].isfinite().all()


@over_terms_with_gaps
def test_an_infinite_label_counts_as_none(name):
    term, layout = TERMS[name]
    first, *others = make_samples(layout)
    call = collect(layout, [first._replace(target=torch.full_like(first.target, float("-inf"))), *others])
    value, grad = mean_and_grad(term, call)
    assert_close(value, mean(term(*collect(layout, others))))
    assert grad.isfinite().all()


@over_terms_with_gaps
def test_a_missing_label_is_an_error_in_the_sum_unless_it_is_ignored(name):
    term, layout = TERMS[name]
    strict = dataclasses.replace(term, ignore_nonfinite=False)
    assert mean(strict(*collect(layout, spoil_first_label(layout, make_samples(layout))))).isnan()


@over_the_terms
def test_shapes_that_would_have_to_be_broadcast_are_refused(name):
    term, (prediction, target, batch) = example(name)
    with pytest.raises(LossError, match=rf"{type(term).__name__}.*{prediction.shape[0]}.*{target.shape[0] + 1}") as refused:
        term(prediction, torch.cat([target, target[:1]]), batch)
    assert "got" in str(refused.value) or "must have one shape" in str(refused.value)
    with pytest.raises(LossError):
        term(prediction, target.unsqueeze(0), batch)
    with pytest.raises(LossError):
        term(prediction[:1], target, batch)


@over_terms_of_errors
def test_dtypes_are_compared_before_shapes_and_both_are_named(name):
    term, (prediction, target, batch) = example(name)
    with pytest.raises(LossError, match=r"prediction is torch\.float32 and target is torch\.float64; give dtype_policy="):
        term(prediction.float(), target[:1], batch)


@over_terms_of_errors
@pytest.mark.parametrize(("policy", "dtype"), [("prediction_to_target", torch.float64), ("target_to_prediction", torch.float32)])
def test_a_dtype_policy_says_which_side_is_converted(name, policy, dtype):
    term, (prediction, target, batch) = example(name)
    sums = dataclasses.replace(term, dtype_policy=policy)(prediction.float(), target, batch)
    assert {part.dtype for part in sums} == {dtype}


@over_the_terms
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(name, half):
    term, (prediction, target, batch) = example(name)
    target = target.to(half) if target.is_floating_point() else target
    sums = term(prediction.to(half), target, batch)
    assert {part.dtype for part in sums} == {torch.float32}
    wide = term(prediction.to(half).double(), target.double() if target.is_floating_point() else target, batch)
    assert_close(mean(sums).double(), mean(wide), rtol=1e-5)  # rounding of float32 sums, far below that of half precision


@over_the_terms
def test_tracing_and_compiling_give_the_eager_numbers(name):
    term, call = example(name)
    eager = term(*call)
    torch._dynamo.reset()  # each case is a program of its own, not a recompilation of the last
    compiled = torch.compile(lambda *args: term(*args), fullgraph=True, backend="aot_eager")
    assert_close(compiled(*call), eager)
    traced = make_fx(lambda prediction, target: term(prediction, target, call[2]))
    assert_close(traced(*call[:2])(*call[:2]), eager)


@over_the_terms
def test_vmap_gives_the_numbers_of_each_member(name):
    term, call = example(name)
    members = torch.stack([call[0], 2 * call[0]])
    mapped = vmap(lambda prediction: term(prediction, *call[1:])[0])(members)
    assert_close(mapped, torch.stack([term(member, *call[1:]).numerator for member in members]))


@over_the_terms
def test_nothing_is_made_on_another_device_than_that_of_the_inputs(name):
    term, call = example(name)
    sums = term(*tree.map(lambda leaf: leaf.to("meta"), call))
    assert {part.device.type for part in sums} == {"meta"}


@over_the_terms
def test_no_denominator_depends_on_the_prediction(name):
    term, (prediction, target, batch) = example(name)
    sums: Sums = term(prediction.requires_grad_(), target, batch)
    assert sums.numerator.requires_grad
    assert not sums.denominator.requires_grad


@over_terms_of_errors
def test_an_unknown_dtype_policy_is_refused_with_those_that_exist(name):
    term, _ = example(name)
    with pytest.raises(LossError, match=r"unknown dtype_policy 'lenient'.*strict, prediction_to_target, target_to_prediction"):
        dataclasses.replace(term, dtype_policy="lenient")
