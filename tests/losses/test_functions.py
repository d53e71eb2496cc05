"""optax's losses as functions: laws over a table of examples, values from torch, from papers or by hand, and the edges."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from purestep import losses
from purestep.errors import LossError
from purestep.losses import LOSSES
from tests.losses.loss_examples import assert_close


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, OTHER = random(4, 5), random(4, 5, seed=1)
PROBABILITIES, LOG_PROBABILITIES = torch.softmax(OTHER, -1), torch.log_softmax(LOGITS, -1)
LABELS = torch.tensor([0, 4, 2, 1])
BINARY = torch.tensor([[0, 1, 0, 0, 1], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 1, 0, 1]])
SIGNS = 2.0 * BINARY.double() - 1
INF = float("inf")

# Arguments for each function of the table; the first is what it is differentiated by.
EXAMPLES = {
    "binary_dice_loss": (LOGITS, BINARY.double()),
    "convex_kl_divergence": (LOG_PROBABILITIES, PROBABILITIES),
    "cosine_distance": (LOGITS, OTHER),
    "cosine_similarity": (LOGITS, OTHER),
    "ctc_loss": (random(2, 6, 4), torch.zeros(2, 6), torch.tensor([[1, 1, 3], [2, 3, 0]]), torch.tensor([[0, 0, 0], [0, 0, 1]])),
    "dice_loss": (random(2, 3, 3, 4), F.one_hot(torch.arange(18).reshape(2, 3, 3) % 4, 4).double()),
    "generalized_kl_divergence": (LOG_PROBABILITIES, PROBABILITIES),
    "hinge_loss": (LOGITS, SIGNS),
    "huber_loss": (LOGITS, OTHER),
    "kl_divergence": (LOG_PROBABILITIES, PROBABILITIES),
    "kl_divergence_with_log_targets": (LOG_PROBABILITIES, PROBABILITIES.log()),
    "l2_loss": (LOGITS, OTHER),
    "log_cosh": (LOGITS, OTHER),
    "multiclass_generalized_dice_loss": (random(2, 3, 3, 4), F.one_hot(torch.arange(18).reshape(2, 3, 3) % 4, 4).double()),
    "multiclass_hinge_loss": (LOGITS, LABELS),
    "multiclass_perceptron_loss": (LOGITS, LABELS),
    "multiclass_sparsemax_loss": (LOGITS, LABELS),
    "ntxent": (LOGITS, torch.tensor([0, 0, 1, 1])),
    "perceptron_loss": (LOGITS, SIGNS),
    "poly_loss_cross_entropy": (LOGITS, PROBABILITIES),
    "ranking_softmax_loss": (LOGITS, BINARY),
    "safe_softmax_cross_entropy": (LOGITS, PROBABILITIES),
    "sigmoid_binary_cross_entropy": (LOGITS, BINARY),
    "sigmoid_focal_loss": (LOGITS, BINARY),
    "smooth_labels": (PROBABILITIES, 0.1),
    "softmax_cross_entropy": (LOGITS, PROBABILITIES),
    "softmax_cross_entropy_with_integer_labels": (LOGITS, LABELS),
    "sparsemax_loss": (LOGITS, BINARY),
    "squared_error": (LOGITS, OTHER),
    "triplet_margin_loss": (LOGITS, OTHER, random(4, 5, seed=2)),
    "weighted_logsoftmax": (LOGITS, PROBABILITIES),
}
over_the_functions = pytest.mark.parametrize("name", EXAMPLES)
of_pairs = pytest.mark.parametrize("name", [n for n, args in EXAMPLES.items() if len(args) == 2 and n not in ("smooth_labels", "ntxent")])


def test_every_function_of_the_table_has_an_example():
    functions = {name for name, made in LOSSES.items() if not inspect.isclass(made)}
    assert set(EXAMPLES) == functions - {"make_fenchel_young_loss"}


@over_the_functions
def test_gradients_agree_with_finite_differences(name):
    first, *rest = EXAMPLES[name]
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, *rest), first.clone().requires_grad_())


@over_the_functions
def test_tracing_compiling_and_vmap_give_the_eager_numbers(name):
    first, *rest = EXAMPLES[name]
    fn = lambda x: LOSSES[name](x, *rest)  # noqa: E731
    eager = fn(first)
    torch._dynamo.reset()
    assert_close(torch.compile(fn, fullgraph=True, backend="aot_eager")(first), eager)
    assert_close(make_fx(fn)(first)(first), eager)
    assert_close(vmap(fn)(torch.stack([first, first]))[1], eager)


@over_the_functions
def test_nothing_is_made_on_another_device_than_that_of_the_inputs(name):
    arguments = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in EXAMPLES[name]]
    assert LOSSES[name](*arguments).device.type == "meta"


@of_pairs
def test_shapes_that_would_have_to_be_broadcast_are_refused(name):
    first, second = EXAMPLES[name]
    with pytest.raises(LossError):
        LOSSES[name](first, second[:1])


# --- values -------------------------------------------------------------------------------------------------------


def test_functions_that_torch_has_give_what_torch_gives():
    assert_close(losses.squared_error(LOGITS, OTHER), F.mse_loss(LOGITS, OTHER, reduction="none"))
    assert_close(losses.l2_loss(LOGITS, OTHER), 0.5 * F.mse_loss(LOGITS, OTHER, reduction="none"))
    assert_close(losses.huber_loss(LOGITS, OTHER, delta=0.7), F.huber_loss(LOGITS, OTHER, reduction="none", delta=0.7))
    assert_close(losses.cosine_similarity(LOGITS, OTHER), F.cosine_similarity(LOGITS, OTHER))
    assert_close(losses.softmax_cross_entropy_with_integer_labels(LOGITS, LABELS), F.cross_entropy(LOGITS, LABELS, reduction="none"))
    assert_close(losses.softmax_cross_entropy(LOGITS, PROBABILITIES), F.cross_entropy(LOGITS, PROBABILITIES, reduction="none"))
    binary = F.binary_cross_entropy_with_logits(LOGITS, BINARY.double(), reduction="none")
    assert_close(losses.sigmoid_binary_cross_entropy(LOGITS, BINARY), binary)
    divergence = F.kl_div(LOG_PROBABILITIES, PROBABILITIES, reduction="none").sum(-1)
    assert_close(losses.kl_divergence(LOG_PROBABILITIES, PROBABILITIES), divergence, rtol=1e-11)  # a difference of larger numbers
    assert_close(losses.kl_divergence_with_log_targets(LOG_PROBABILITIES, PROBABILITIES.log()), divergence, rtol=1e-11)
    margins = F.multi_margin_loss(LOGITS, LABELS, reduction="none") * 5  # torch sums over the wrong classes, and divides by 5
    assert (losses.multiclass_hinge_loss(LOGITS, LABELS) <= margins + 1e-12).all()


def test_ctc_is_that_of_torch():
    logits, _, labels, paddings = EXAMPLES["ctc_loss"]
    frames = torch.tensor([[0.0] * 6, [0.0] * 5 + [1.0]])
    log_probabilities = torch.log_softmax(logits, -1).transpose(0, 1)
    expected = F.ctc_loss(log_probabilities, labels, torch.tensor([6, 5]), torch.tensor([3, 2]), reduction="none")
    assert_close(losses.ctc_loss(logits, frames, labels, paddings), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: losses.hinge_loss(torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 1.0])), [1.5, 0.0]),
        (lambda: losses.perceptron_loss(torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 1.0])), [0.5, 0.0]),
        (lambda: losses.sparsemax_loss(torch.tensor([0.0, 3.0, 3.0]), torch.tensor([1, 1, 0])), [0.25, 0.0, 3.0]),
        (lambda: losses.multiclass_hinge_loss(torch.tensor([[1.0, 3.0], [3.0, 1.0]]), torch.tensor([0, 0])), [3.0, 0.0]),
        (lambda: losses.multiclass_perceptron_loss(torch.tensor([[1.0, 3.0], [3.0, 1.0]]), torch.tensor([0, 0])), [2.0, 0.0]),
        # p = (3/4, 1/4): p.s - |p|^2/2 + 1/2 - s_0 = 3/8 - 5/16 + 1/2 - 1/2
        (lambda: losses.multiclass_sparsemax_loss(torch.tensor([[0.5, 0.0], [2.0, 0.0]]), torch.tensor([0, 0])), [0.0625, 0.0]),
        (lambda: losses.smooth_labels(torch.tensor([0.0, 1.0]), 0.1), [0.05, 0.95]),
        (lambda: losses.smooth_labels(torch.eye(2)[:, :1], 0.1, axis=0)[:, 0], [0.95, 0.05]),
        (lambda: losses.log_cosh(torch.tensor([0.0, 100.0])), [0.0, 99.30685]),
        (lambda: losses.cosine_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])), [1.0]),
        (lambda: losses.triplet_margin_loss(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]]), eps=0.0), [4.0]),
        # both wrong and sure of it: p = 1/2 gives log(2) / 4
        (lambda: losses.sigmoid_focal_loss(torch.zeros(2), torch.tensor([0, 1])), [0.1732868, 0.1732868]),
        (lambda: losses.sigmoid_focal_loss(torch.zeros(2), torch.tensor([0, 1]), alpha=0.25, gamma=0.0), [0.5198604, 0.1732868]),
        (lambda: losses.poly_loss_cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])), [0.6931472 + 2 * 0.5]),
        # of one class with logits 0: P = 1, T = 2, I = 1
        (lambda: losses.binary_dice_loss(torch.zeros(1, 2), torch.ones(1, 2)), [1 - 2 / 2.5]),
        (lambda: losses.generalized_kl_divergence(torch.zeros(1, 2), torch.ones(1, 2) * 2), [2 * 2 * 0.6931472 + 2 - 4]),
    ],
)
def test_values_by_hand(found, expected):
    torch.testing.assert_close(found(), torch.tensor(expected), rtol=1e-6, atol=1e-7)  # float32


def test_ranking_softmax_gives_the_number_in_the_documentation_of_optax():
    value = losses.ranking_softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert value == pytest.approx(1.408, abs=5e-4)


def test_ntxent_of_one_pair_against_one_other_by_hand():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    value = losses.ntxent(embeddings, torch.tensor([0, 0, 1]), temperature=1.0)
    assert value == pytest.approx(float(torch.log1p(torch.exp(torch.tensor(-1.0, dtype=torch.float64)))), rel=1e-14)


def test_ntxent_without_a_pair_is_zero():
    assert losses.ntxent(LOGITS, torch.arange(4)) == 0


def test_fenchel_young_loss_of_logsumexp_is_the_cross_entropy():
    loss = losses.make_fenchel_young_loss(lambda scores: torch.logsumexp(scores, -1))
    one_hot = F.one_hot(LABELS, 5).double()
    assert_close(loss(LOGITS, one_hot), losses.softmax_cross_entropy(LOGITS, one_hot))


def test_log_cosh_keeps_small_errors_in_float32():
    small = torch.tensor([1e-4])
    assert_close(losses.log_cosh(small), 0.5 * small.square(), rtol=1e-6)


# --- edges --------------------------------------------------------------------------------------------------------


def value_and_grad(fn, *args, **kwargs):
    first, *rest = args
    first = first.clone().requires_grad_()
    value = fn(first, *rest, **kwargs)
    return value.detach(), torch.autograd.grad(value.sum(), first)[0]


IMPOSSIBLE = LOGITS.masked_fill(BINARY.bool() & (torch.arange(5) != LABELS[:, None]), -INF)
ONE_HOT = F.one_hot(LABELS, 5).double()
WHERE = torch.tensor([[True, True, False, False, True], [True] * 5, [False] * 5, [True, True, False, False, False]])


@pytest.mark.parametrize(
    ("fn", "labels"),
    [
        (losses.softmax_cross_entropy_with_integer_labels, LABELS),
        (losses.softmax_cross_entropy, ONE_HOT),
        (losses.safe_softmax_cross_entropy, ONE_HOT),
        (losses.poly_loss_cross_entropy, ONE_HOT),
        (losses.weighted_logsoftmax, ONE_HOT),
        (losses.ranking_softmax_loss, ONE_HOT),
    ],
)
def test_logits_of_minus_infinity_give_finite_values_and_gradients(fn, labels):
    value, grad = value_and_grad(fn, IMPOSSIBLE, labels)
    assert value.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("fn", [losses.sigmoid_binary_cross_entropy, losses.sigmoid_focal_loss])
def test_infinite_logits_on_the_right_side_give_zero(fn):
    value, grad = value_and_grad(fn, torch.tensor([INF, -INF]), torch.tensor([1, 0]))
    assert torch.equal(value, torch.zeros(2)) and torch.equal(grad, torch.zeros(2))


def test_an_infinite_error_gives_no_nan_in_the_gradient_of_a_huber_loss():
    assert torch.equal(value_and_grad(losses.huber_loss, torch.tensor([INF, -INF]))[1], torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize(
    ("fn", "labels"),
    [(losses.softmax_cross_entropy_with_integer_labels, torch.tensor([1, 4, -100, 0])), (losses.softmax_cross_entropy, PROBABILITIES)],
)
def test_where_restricts_the_classes_and_a_row_without_any_gives_zero(fn, labels):
    spoilt = torch.where(WHERE, LOGITS, float("nan"))
    value, grad = value_and_grad(fn, spoilt, labels, where=WHERE)
    assert value.isfinite().all() and grad.isfinite().all()
    assert value[2] == 0 and grad[~WHERE].abs().max() == 0
    rows = slice(0, 1)
    inside = WHERE[0].nonzero().squeeze(-1)
    labels_inside = labels[rows] if labels.ndim == 1 else labels[rows][:, inside]
    assert_close(value[rows], fn(LOGITS[rows][:, inside], labels_inside))


def test_where_may_be_a_mask_of_rows():
    rows = torch.tensor([True, False, True, False])
    value, grad = value_and_grad(losses.softmax_cross_entropy_with_integer_labels, LOGITS, LABELS, where=rows)
    assert_close(value[rows], losses.softmax_cross_entropy_with_integer_labels(LOGITS, LABELS)[rows])
    assert value[~rows].abs().max() == 0 and grad[~rows].abs().max() == 0


def test_classes_may_be_on_any_axis():
    assert_close(
        losses.softmax_cross_entropy_with_integer_labels(LOGITS.T, LABELS, axis=0),
        losses.softmax_cross_entropy_with_integer_labels(LOGITS, LABELS),
    )


def test_targets_that_are_zero_add_nothing_to_a_divergence():
    value, grad = value_and_grad(losses.kl_divergence, torch.tensor([[0.0, -INF]]), torch.tensor([[1.0, 0.0]]))
    assert value == 0 and grad.isfinite().all()
    value, grad = value_and_grad(losses.kl_divergence_with_log_targets, torch.tensor([[0.0, -INF]]), torch.tensor([[0.0, -INF]]))
    assert value == 0 and grad.isfinite().all()


def test_integer_labels_that_are_none_are_refused_by_dtype():
    with pytest.raises(
        LossError, match=r"labels must be integers, the class of each row, got torch\.float64; for probabilities use softmax_cross_entropy"
    ):
        losses.softmax_cross_entropy_with_integer_labels(LOGITS, PROBABILITIES)
