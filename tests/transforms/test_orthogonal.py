"""Newton-Schulz, Muon's momentum and scale, and the choice of dimensions."""

import math

import pytest
import torch

from purestep.core.transform import chain
from purestep.errors import PatternError
from purestep.optimizers import muon
from purestep.transforms import MuonDimensionNumbers, orthogonalize_via_newton_schulz, scale_by_muon, scale_by_shape


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CONVERGING = (1.875, -1.25, 0.375)  # the quintic iteration that converges to 1; Muon's own coefficients do not


@pytest.mark.parametrize("preconditioning", ["frobenius", "spectral", "aol", "schatten"])
@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)])
def test_many_converging_steps_give_the_polar_factor(preconditioning, shape):
    x = matrix(*shape)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    found = orthogonalize_via_newton_schulz(x, CONVERGING, 40, preconditioning, eps=1e-300)
    # the rescaling of rows ("aol") changes the matrix that is orthogonalized, so only its singular values are known
    expected, actual = (u @ vh, found) if preconditioning != "aol" else (torch.ones(min(shape)).double(), torch.linalg.svdvals(found))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)  # quadratic convergence, down to rounding


@pytest.mark.parametrize("ns_coeffs", ["standard", "dion"])
def test_five_steps_bring_singular_values_near_one(ns_coeffs):
    values = torch.linalg.svdvals(orthogonalize_via_newton_schulz(matrix(8, 16), ns_coeffs))
    assert 0.6 < values.min()
    assert values.max() < 1.25


def test_the_transposed_matrix_gives_the_transposed_result():
    x = matrix(3, 6)
    torch.testing.assert_close(orthogonalize_via_newton_schulz(x.T), orthogonalize_via_newton_schulz(x).T, rtol=0, atol=1e-15)


def test_a_convolution_is_the_matrix_of_its_output_channels():
    x = matrix(4, 2, 3, 3)
    found = orthogonalize_via_newton_schulz(x, dimension_numbers=MuonDimensionNumbers((1, 2, 3), 0))
    torch.testing.assert_close(found.reshape(4, 18), orthogonalize_via_newton_schulz(x.reshape(4, 18)), rtol=0, atol=1e-14)


def test_dimensions_that_are_not_named_are_a_batch():
    x = matrix(3, 4, 5)
    found = orthogonalize_via_newton_schulz(x, dimension_numbers=MuonDimensionNumbers(2, 1))
    one_by_one = torch.stack([orthogonalize_via_newton_schulz(each) for each in x])
    torch.testing.assert_close(found, one_by_one, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ns_coeffs": "fast"}, "unknown ns_coeffs 'fast'"),
        ({"ns_coeffs": [(1.0, 2.0, 3.0)] * 3}, "at least ns_steps = 5 such triples"),
        ({"preconditioning": "row"}, "unknown preconditioning 'row'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        orthogonalize_via_newton_schulz(matrix(3, 3), **arguments)


# --- scale by shape ----------------------------------------------------------------------------------------------------


def scaled(shape, **arguments):
    updates = {"w": torch.ones(shape, dtype=torch.float64)}
    transform = scale_by_shape(**arguments)
    return float(transform.update(updates, transform.init(updates))[0]["w"].flatten()[0])


def test_a_weight_of_torch_is_scaled_by_its_rows_over_its_columns():
    assert scaled((8, 2)) == 2.0
    assert scaled((2, 8)) == 1.0


def test_the_layout_of_optax_is_scaled_the_other_way():
    assert scaled((2, 8), layout="in_out") == 2.0
    assert scaled((8, 2), layout="in_out") == 1.0


def test_the_consistent_form_gives_the_wanted_root_mean_square():
    orthogonal = torch.linalg.qr(matrix(8, 8)).Q[:, :4]
    transform = scale_by_shape(consistent_rms=0.2)
    updates, _ = transform.update({"w": orthogonal}, transform.init({"w": orthogonal}))
    assert float(updates["w"].square().mean().sqrt()) == pytest.approx(0.2, rel=1e-12)


# --- which leaves are matrices ------------------------------------------------------------------------------------------

PARAMS = {
    "embed.weight": matrix(10, 4),
    "layers": {"0": {"weight": matrix(4, 4), "bias": matrix(4)}, "1": {"weight": matrix(4, 4), "bias": matrix(4)}},
    "conv.weight": matrix(4, 2, 3, 3),
}


def parts(optimizer):
    state = optimizer.init(PARAMS)
    return [sorted(p for p, label in zip(part.paths, part.labels, strict=True) if label) for part in state.values()]


def test_matrices_go_to_muon_and_the_rest_to_the_fallback():
    assert parts(muon(0.1)) == [
        ["embed.weight", "layers.0.weight", "layers.1.weight"],
        ["conv.weight", "layers.0.bias", "layers.1.bias"],
    ]


def test_patterns_name_exceptions_and_convolutions():
    choice = {"embed*": None, "conv.weight": MuonDimensionNumbers((1, 2, 3), 0)}
    matrices, others = parts(muon(0.1, muon_weight_dimension_numbers=choice))
    assert matrices == ["conv.weight", "layers.0.weight", "layers.1.weight"]
    assert others == ["embed.weight", "layers.0.bias", "layers.1.bias"]


def test_a_prefix_of_the_tree_decides_for_its_branch():
    matrices, _ = parts(muon(0.1, muon_weight_dimension_numbers={"layers": {"0": None}, "embed.weight": None}))
    assert matrices == ["layers.1.weight"]


def test_a_model_of_matrices_alone_needs_no_fallback():
    params = {"w": matrix(3, 3)}
    updates, _ = muon(0.1).update(params, muon(0.1).init(params), params)
    assert updates["w"].shape == (3, 3)


def test_a_pattern_without_a_leaf_is_an_error_with_near_misses():
    with pytest.raises(PatternError, match=r"'embedding\.\*' matches none of 6 leaves; did you mean 'embed.weight'"):
        muon(0.1, muon_weight_dimension_numbers={"embedding.*": None}).init(PARAMS)


def test_a_leaf_without_dimensions_is_named():
    with pytest.raises(ValueError, match=r"scale_by_muon: leaf 'layers.0.bias' has no dimension numbers"):
        scale_by_muon(weight_dimension_numbers={"conv.weight": MuonDimensionNumbers((1, 2, 3), 0)}).init(PARAMS)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (MuonDimensionNumbers(0, 0), "names a dimension of shape .* twice"),
        (MuonDimensionNumbers(5, 0), "names dimension 5"),
    ],
)
def test_dimensions_must_fit_the_leaf(dims, message):
    with pytest.raises(ValueError, match=message):
        scale_by_muon(weight_dimension_numbers=dims).init({"w": matrix(3, 4)})


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="unknown layout 'rows'"):
        muon(0.1, layout="rows").init(PARAMS)


# --- the optimizer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("adjust", "consistent_rms"), [("original", None), ("match_rms_adamw", 0.2)])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_muon_is_the_one_of_torch(shape, adjust, consistent_rms, nesterov):
    parameter = torch.nn.Parameter(matrix(*shape))
    theirs = torch.optim.Muon([parameter], lr=0.05, weight_decay=0.1, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust)
    ours = muon(
        0.05,
        weight_decay=0.1,
        beta=0.9,
        eps=1e-7,
        nesterov=nesterov,
        debias=False,
        ns_dtype=torch.bfloat16,
        consistent_rms=consistent_rms,
    )
    params = {"w": parameter.detach().clone()}
    state = ours.init(params)
    for step in range(20):
        grad = matrix(*shape, seed=step + 1)
        parameter.grad = grad
        theirs.step()
        updates, state = ours.update({"w": grad}, state, params)
        params = {"w": params["w"] + updates["w"]}
        # bfloat16 inside: equal because the operations are, in the same order
        torch.testing.assert_close(params["w"], parameter.detach(), rtol=0, atol=1e-12)


def test_the_adaptive_form_multiplies_by_the_dual_norm():
    updates = {"w": matrix(4, 4)}
    plain, adaptive = (chain(scale_by_muon(adaptive=adaptive)) for adaptive in (False, True))
    one, _ = plain.update(updates, plain.init(updates))
    two, _ = adaptive.update(updates, adaptive.init(updates))
    factor = float((two["w"] / one["w"]).mean())
    torch.testing.assert_close(two["w"], factor * one["w"], rtol=1e-12, atol=0)
    # m = (1 - b) u, so that the corrected mean, looking ahead, is b (1 - b) / (1 - b^2) u + u
    ahead = 1 + 0.95 / (1 + 0.95)
    assert math.isclose(factor, ahead * float((updates["w"] * one["w"]).sum()), rel_tol=1e-12)
