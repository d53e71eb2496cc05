"""Models of purestep in a spec: their names and arguments are checked with everything else, before anything is trusted."""

import pytest
import torch

from purestep.spec.reading import check_text
from tests.spec.examples import changed, text_of

MODEL = "/strategy/model_specs/main"


def problems(**model):
    return check_text(text_of(changed(**{"strategy/model_specs/main": model}))).problems


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("purestep.models.Schnet", "did you mean 'purestep.models.SchNet'?"),
        ("purestep.models.Painn", "did you mean 'purestep.models.PaiNN'?"),
        ("purestep.model.PaiNN", "did you mean 'purestep.models.PaiNN'?"),
        ("purestep.SchNet", "did you mean 'purestep.models.SchNet'?"),
        ("purestep.models.Mace", "(known: 'purestep.models.PaiNN', 'purestep.models.SchNet')"),
    ],
)
def test_a_slip_in_the_name_of_a_model_is_found_and_the_right_one_proposed(path, meant):
    (problem,) = problems(cls_path=path)
    assert (problem.code, problem.pointer) == ("PS502", f"{MODEL}/cls_path")
    assert meant in problem.message and problem.line > 0


def test_a_slip_in_an_argument_of_a_model_is_found():
    (problem,) = problems(cls_path="purestep.models.PaiNN", cutof=3.0)
    assert (problem.code, problem.pointer) == ("PS504", f"{MODEL}/cutof")
    assert "did you mean 'cutoff'?" in problem.message


@pytest.mark.parametrize("name", ["PaiNN", "SchNet"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 2, got 0"),
        ({"num_layers": -1}, "num_layers must lie in [1, 1000], got -1"),
        ({"num_layers": 10_000_000}, "num_layers must lie in [1, 1000], got 10000000"),
        ({"num_radial": 0}, "num_radial must be at least"),
        ({"max_number": 0}, "max_number must be at least 1, got 0"),
        ({"cutoff": 0}, "cutoff must lie in (0, inf), got 0"),
        ({"cutoff": -3.0}, "cutoff must lie in (0, inf), got -3.0"),
        ({"hidden_size": "8"}, "hidden_size must be a whole number and be at least 2, got '8'"),
        ({"num_layers": 1.5}, "num_layers must be a whole number"),
        ({"cutoff": True}, "cutoff must be a number"),
    ],
)
def test_a_value_that_a_model_cannot_have_is_found_before_anything_is_made(name, arguments, message):
    (problem,) = problems(cls_path=f"purestep.models.{name}", **arguments)
    assert (problem.code, problem.pointer) == ("PS504", MODEL)
    assert problem.message.startswith(f"{name}: ") and message in problem.message
    assert problem.message.count(name) == 1 and problem.line > 0


@pytest.mark.parametrize("size", [2**62, 10**30])
@pytest.mark.parametrize("argument", ["hidden_size", "num_radial", "max_number"])
def test_a_size_that_no_tensor_can_have_is_a_problem_and_no_crash(argument, size):
    (problem,) = problems(cls_path="purestep.models.PaiNN", **{argument: size})
    assert (problem.code, problem.pointer) == ("PS504", MODEL)


def test_checking_a_model_takes_neither_memory_nor_random_numbers():
    before = torch.get_rng_state()
    assert problems(cls_path="purestep.models.PaiNN", hidden_size=1_000_000, num_layers=20) == ()  # terabytes, if it were there
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("path", ["purestep.models.painn.PaiNN", "my.models.Schnet", "purestepper.Net"])
def test_what_is_there_or_of_others_is_left_alone(path):
    assert problems(cls_path=path, cutof=3.0) == ()
