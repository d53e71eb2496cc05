"""Models of purestep in a spec: their names and arguments are checked with everything else, before anything is trusted."""

import pytest

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


@pytest.mark.parametrize("path", ["purestep.models.painn.PaiNN", "my.models.Schnet", "purestepper.Net"])
def test_what_is_there_or_of_others_is_left_alone(path):
    assert problems(cls_path=path, cutof=3.0) == ()
