"""Shampoo and SOAP against their formulas."""

import pytest
import torch

from purestep.core.transform import apply_updates
from purestep.optimizers import adamw, shampoo, soap
from purestep.transforms import MuonDimensionNumbers, scale_by_adam, scale_by_shampoo, scale_by_soap


def matrices(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(transform, grads):
    state, out = transform.init({"w": grads[0]}), []
    for grad in grads:
        updates, state = transform.update({"w": grad}, state)
        out.append(updates["w"])
    return torch.stack(out)


def inverse_root(matrix, power, eps):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag((values + eps) ** (-1 / power)) @ vectors.T


def test_the_first_update_of_shampoo_is_orthogonal():
    grad = matrices(1, 4, 4)
    u, _, vh = torch.linalg.svd(grad[0])
    # eps against a smallest eigenvalue of about 1e-2
    torch.testing.assert_close(run(scale_by_shampoo(eps=1e-14), grad)[0], u @ vh, rtol=0, atol=1e-9)


def test_shampoo_multiplies_by_inverse_fourth_roots_of_sums():
    grads = matrices(5, 4, 3)
    left, right = torch.zeros(4, 4).double(), torch.zeros(3, 3).double()
    for grad, found in zip(grads, run(scale_by_shampoo(eps=1e-3), grads), strict=True):
        left, right = left + grad @ grad.T, right + grad.T @ grad
        expected = inverse_root(left, 4, 1e-3) @ grad @ inverse_root(right, 4, 1e-3)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)  # eigendecompositions of one matrix, two ways


def test_shampoo_with_means_corrects_their_start():
    grads = matrices(1, 4, 4).expand(6, 4, 4)
    found = run(scale_by_shampoo(b2=0.9, eps=1e-6), grads)
    torch.testing.assert_close(found[5], found[0], rtol=1e-9, atol=1e-11)  # one gradient again and again


def test_a_side_that_is_too_long_is_left_out_and_the_other_takes_the_inverse_root():
    grads = matrices(1, 5, 3)
    expected = grads[0] @ inverse_root(grads[0].T @ grads[0], 2, 1e-6)
    torch.testing.assert_close(run(scale_by_shampoo(eps=1e-6, max_precond_dim=4), grads)[0], expected, rtol=1e-10, atol=1e-12)


def test_grafting_keeps_the_norm_of_the_update():
    grads = matrices(3, 4, 3)
    found = run(scale_by_shampoo(graft=True), grads)
    torch.testing.assert_close(found.flatten(1).norm(dim=1), grads.flatten(1).norm(dim=1), rtol=1e-12, atol=0)


def test_soap_is_adam_in_the_basis_it_keeps():
    b1, b2, eps, grads = 0.9, 0.95, 1e-8, matrices(6, 4, 3)
    m, v = torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    left, right, q_left, q_right = torch.zeros(4, 4).double(), torch.zeros(3, 3).double(), torch.eye(4).double(), torch.eye(3).double()
    for t, (grad, found) in enumerate(zip(grads, run(scale_by_soap(b1, b2, eps=eps), grads), strict=True), start=1):
        m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * (q_left.T @ grad @ q_right) ** 2
        inside = (q_left.T @ m @ q_right) / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)
        torch.testing.assert_close(found, q_left @ inside @ q_right.T, rtol=1e-8, atol=1e-10)  # the damping of rounding errors
        left, right = b2 * left + (1 - b2) * grad @ grad.T, b2 * right + (1 - b2) * grad.T @ grad
        q_left, q_right = (torch.linalg.qr(_damped(g) @ q).Q for g, q in ((left, q_left), (right, q_right)))


def _damped(gram):
    size = gram.shape[0]
    return gram + torch.finfo(torch.float64).eps ** (1 / 3) * gram.trace() / size * torch.eye(size).double()


def test_the_first_update_of_soap_is_adams():
    grads = matrices(1, 4, 3)
    torch.testing.assert_close(run(scale_by_soap(0.9, 0.99), grads), run(scale_by_adam(0.9, 0.99), grads), rtol=1e-12, atol=0)


def test_the_basis_turns_into_that_of_the_gradients():
    # gradients with one set of singular vectors: a rotated diagonal problem
    gen = torch.Generator().manual_seed(1)
    q_left, q_right = (torch.linalg.qr(torch.randn(n, n, generator=gen, dtype=torch.float64)).Q for n in (4, 4))
    sizes = torch.tensor([8.0, 4.0, 2.0, 1.0]).double() * (1 + 0.1 * torch.rand(100, 4, generator=gen, dtype=torch.float64))
    grads = q_left @ torch.diag_embed(sizes) @ q_right.T
    transform = scale_by_soap(0.9, 0.9)
    state = transform.init({"w": grads[0]})
    for grad in grads:
        _, state = transform.update({"w": grad}, state)
    overlap = (q_left.T @ state.basis[0]["left"]).abs()
    torch.testing.assert_close(overlap, torch.eye(4).double(), rtol=0, atol=1e-6)  # a hundred steps at ratios of at most 1/4


@pytest.mark.parametrize(("make", "learning_rate"), [(soap, 0.03), (shampoo, 1.0)])
def test_a_rotated_ill_conditioned_problem_is_solved(make, learning_rate):
    gen = torch.Generator().manual_seed(2)
    q_left, q_right = (torch.linalg.qr(torch.randn(n, n, generator=gen, dtype=torch.float64)).Q for n in (6, 4))
    curvature = torch.logspace(0, 3, 24, dtype=torch.float64).view(6, 4)
    params = {"w": torch.ones(6, 4, dtype=torch.float64), "b": torch.ones(3, dtype=torch.float64)}
    optimizer = make(learning_rate)
    state = optimizer.init(params)

    def loss(params):
        return (curvature * (q_left.T @ params["w"] @ q_right) ** 2).sum() / 2 + (params["b"] ** 2).sum()

    start = float(loss(params))
    for _ in range(300):
        updates, state = optimizer.update(torch.func.grad(loss)(params), state, params)
        params = apply_updates(params, updates)
    assert float(loss(params)) < 1e-3 * start


def test_leaves_that_are_no_matrices_get_adamw():
    params = {"bias": matrices(1, 5)[0], "w": matrices(1, 4, 3)[0]}
    ours, plain = soap(0.1, 0.9, 0.99, weight_decay=0.1), adamw(0.1, 0.9, 0.99, weight_decay=0.1)
    found, _ = ours.update(params, ours.init(params), params)
    expected, _ = plain.update(params, plain.init(params), params)
    assert torch.equal(found["bias"], expected["bias"])


def test_a_convolution_is_preconditioned_as_a_matrix():
    grad = matrices(1, 4, 2, 3, 3)[0]
    transform = scale_by_shampoo(weight_dimension_numbers=MuonDimensionNumbers((1, 2, 3), 0))
    found, _ = transform.update({"w": grad}, transform.init({"w": grad}))
    flat = run(scale_by_shampoo(), grad.reshape(1, 4, 18))[0]
    torch.testing.assert_close(found["w"].reshape(4, 18), flat, rtol=1e-12, atol=1e-14)


def test_complex_leaves_are_refused_with_advice():
    with pytest.raises(ValueError, match="split_real_and_imaginary"):
        scale_by_soap().init({"w": torch.zeros(2, 2, dtype=torch.complex128)})
