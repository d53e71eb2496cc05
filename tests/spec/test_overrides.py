import pytest

from purestep.spec.reading import check_text, document_of
from tests.spec.examples import GOOD, text_of


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("strategy.num_steps=7", lambda spec: spec.strategy.num_steps == 7),
        ("name=try-2", lambda spec: spec.name == "try-2"),
        ("strategy.hooks=[]", lambda spec: spec.strategy.hooks == ()),
        ("strategy.update.2.b1=0.5", lambda spec: spec.strategy.update[2].b1 == 0.5),
        ("output.checkpoints=null", lambda spec: spec.output.checkpoints is None),
        ("runtime.compile.backend=eager", lambda spec: spec.runtime.compile.backend == "eager"),
        ("notes=a=b", lambda spec: spec.notes == "a=b"),
    ],
)
def test_an_override_takes_the_place_of_a_value(override, read):
    spec, problems = check_text(text_of(GOOD), [override])
    assert problems == ()
    assert read(spec)


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("strategy.num_stpes=7", "PS101", "did you mean 'num_steps'"),
        ("strategy.num_steps=many", "PS104", "expected a whole number"),
        ("strategy.num_steps", "PS101", "must look like path=value"),
        ("strategy.update.9.b1=0.5", "PS101", "there is nothing at '9'"),
        ("name.first=x", "PS101", "there is nothing at 'first'"),
    ],
)
def test_an_override_is_checked_like_the_spec(override, code, message):
    problems = check_text(text_of(GOOD), [override]).problems
    assert [problem.code for problem in problems] == [code]
    assert message in problems[0].message
    assert problems[0].line == 0  # it stands in no file


def test_a_spec_with_its_defaults_written_out_is_the_same_spec():
    spec = check_text(text_of(GOOD)).spec
    assert check_text(text_of(document_of(spec))).spec == spec
