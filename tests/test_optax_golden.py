"""Every case of every golden file, to the tolerance that the file states."""

from pathlib import Path

import numpy as np
import pytest
import torch

from purestep.core import tree
from purestep.transforms import schedule_free_eval_params
from tests import optax_golden as interpreter

FILES = {path.stem: interpreter.read(path) for path in sorted((Path(__file__).parent / "goldens").glob("optax_*.json"))}


def cases(kind):
    found = [(file, case) for file, golden in FILES.items() for case in golden.specs[kind]]
    return pytest.mark.parametrize(("file", "case"), [pytest.param(*pair, id=f"{pair[0]}-{pair[1]['name']}") for pair in found])


def assert_reaches(golden, prefix, step, params, tolerance):
    for path, leaf in tree.items(params):
        wanted = golden.arrays[f"{prefix}{path.replace('.', '/')}"][step]
        np.testing.assert_allclose(leaf.double().numpy(), wanted, **tolerance, err_msg=f"{path} after step {step}")


@cases("optimizers")
def test_an_optimizer_follows_the_golden_trajectory(file, case):
    golden = FILES[file]
    for dtype in case["dtypes"]:
        tolerance, at = interpreter.tolerance(golden, case, dtype), f"opt/{case['name']}/{dtype}/"
        for step, (params, state) in enumerate(interpreter.trajectory(golden, case, interpreter.DTYPES[dtype])):
            assert_reaches(golden, at, step, params, tolerance)
            if f"{at}eval:b" in golden.arrays:
                assert_reaches(golden, f"{at}eval:", step, schedule_free_eval_params(state, params), tolerance)
            for name in case["probes"]:
                wanted = golden.arrays[f"{at}probe:{name}"][step]
                np.testing.assert_allclose(interpreter.probe(state, name), wanted, **tolerance, err_msg=f"{name} after step {step}")


@cases("schedules")
def test_a_schedule_gives_the_golden_values(file, case):
    golden = FILES[file]
    schedule = interpreter.build(case["spec"])
    values = torch.stack([schedule(count) for count in range(golden.specs["schedule_counts"])])
    np.testing.assert_allclose(values.numpy(), golden.arrays[f"schedule/{case['name']}/f64"], rtol=2e-6, atol=2e-8)


@cases("losses")
def test_a_loss_gives_the_golden_values_and_gradients(file, case):
    golden = FILES[file]
    value, grad = interpreter.loss_value_and_grad(golden, case)
    at, tolerance = f"loss/{case['name']}/f64/", golden.specs["tolerances"]["losses"]
    np.testing.assert_allclose(value.numpy(), golden.arrays[f"{at}value"], **tolerance)
    np.testing.assert_allclose(grad.numpy(), golden.arrays[f"{at}grad:{case['args'][0]}"], **tolerance)
