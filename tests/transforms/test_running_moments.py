"""Precision of the running moments: against float64, and with bfloat16 parameters."""

from pathlib import Path

import pytest
import torch

from purestep.core import tree
from purestep.transforms import scale_by_adam
from purestep.transforms.moments import bias_correction
from tests import optax_golden

GOLDEN = optax_golden.read(Path(__file__).parent.parent / "goldens" / "optax_golden.json")


def walk(dtype, kind):
    """Parameters after 20 steps of adam on the golden gradients, all in one dtype."""
    case = {"spec": {"op": "adam", "kwargs": {"learning_rate": 0.01}}, "grads": kind, "extra": []}
    *_, (params, _) = optax_golden.trajectory(GOLDEN, case, dtype)
    return [leaf.double() for leaf in tree.leaves(params)]


@pytest.mark.parametrize("kind", ["normal", "spiky", "sparse"])
def test_float32_adam_stays_within_4e_7_of_float64_over_20_steps(kind):
    pairs = zip(walk(torch.float32, kind), walk(torch.float64, kind), strict=True)
    assert max(float((single - double).abs().max()) for single, double in pairs) < 4e-7


def test_b2_of_0_999_acts_as_0_999_on_bfloat16_parameters():
    transform, params = scale_by_adam(), {"w": torch.zeros(1, dtype=torch.bfloat16)}
    state = transform.init(params)
    for value in [1.0] * 60 + [0.0] * 200:
        _, state = transform.update({"w": torch.full((1,), value, dtype=torch.bfloat16)}, state, params)
    expected = (1 - 0.999**60) * 0.999**200
    # 260 roundings of float32
    torch.testing.assert_close(state.nu["w"].double(), torch.tensor([expected], dtype=torch.float64), rtol=1e-5, atol=0)


def test_moments_are_float32_for_narrow_parameters_and_as_wide_as_wide_ones():
    kinds = {"half": torch.float16, "brain": torch.bfloat16, "single": torch.float32, "double": torch.float64}
    state = scale_by_adam().init({name: torch.zeros(1, dtype=dtype) for name, dtype in kinds.items()})
    expected = {"half": torch.float32, "brain": torch.float32, "single": torch.float32, "double": torch.float64}
    assert {name: leaf.dtype for name, leaf in state.nu.items()} == expected
    assert {name: leaf.dtype for name, leaf in state.mu.items()} == expected


def test_the_first_moment_may_be_stored_narrow():
    transform, params = scale_by_adam(mu_dtype=torch.bfloat16), {"w": torch.zeros(3)}
    updates, state = transform.update({"w": torch.ones(3)}, transform.init(params), params)
    assert state.mu["w"].dtype == torch.bfloat16
    assert updates["w"].dtype == torch.float32
    torch.testing.assert_close(updates["w"], torch.ones(3))


def test_complex_second_moments_are_of_magnitudes():
    transform, params = scale_by_adam(), {"w": torch.zeros(1, dtype=torch.complex128)}
    updates, state = transform.update({"w": torch.tensor([3 + 4j], dtype=torch.complex128)}, transform.init(params), params)
    assert state.nu["w"].dtype == torch.float64
    torch.testing.assert_close(updates["w"], torch.tensor([0.6 + 0.8j], dtype=torch.complex128))


def test_bias_correction_is_exact_for_small_and_large_counts():
    counts = torch.tensor([1, 1000, 10**9])
    exact = [1 - 0.999, 1 - 0.999**1000, 1.0]
    # the references subtract from 1, and lose three digits for the first
    torch.testing.assert_close(bias_correction(0.999, counts), torch.tensor(exact, dtype=torch.float64), rtol=1e-13, atol=0)
    assert bias_correction(0.0, counts).tolist() == [1.0] * 3


@pytest.mark.parametrize("decays", [{"b1": 1.0}, {"b2": 1.0}, {"b1": 2.0}, {"b1": -0.5}, {"b2": float("nan")}], ids=str)
def test_adam_refuses_decays_outside_their_range(decays):
    with pytest.raises(ValueError, match=r"scale_by_adam: b[12] must lie in \[0, 1\), got"):
        scale_by_adam(**decays)
