import pytest

from purestep.errors import StructureMismatchError
from purestep.spec.building import build
from purestep.spec.continuing import changes, check_description, description_of, unsafe
from purestep.spec.reading import check_text
from tests.spec.examples import GOOD, changed, text_of


def refused(allowed=(), **values):
    before, after = (check_text(text_of(document)).spec for document in (GOOD, changed(**values)))
    return [one.pointer for one in unsafe(changes(before, after), allowed)]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"output/run_dir": "elsewhere", "output/report_every": 5, "output/checkpoints": None},
        {"runtime/device": "auto", "runtime/threads": 2, "name": "b", "notes": "n"},
        {"strategy/num_steps": 4},
        {"strategy/early_stopping": {"patience": 3}, "runtime/time_budget": 60.0},
    ],
    ids=["nothing", "output", "device and words", "longer", "other ends"],
)
def test_what_leaves_it_the_same_run_needs_no_permission(values):
    assert refused(**values) == []


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"strategy/num_steps": 2}, "/strategy/num_steps"),
        ({"strategy/update/2/b1": 0.5}, "/strategy/update/2/b1"),
        ({"strategy/hooks": []}, "/strategy/hooks/0"),
        ({"dataset/batch_size": 8}, "/dataset/batch_size"),
        ({"runtime/seed": 4}, "/runtime/seed"),
        ({"runtime/precision": "bf16"}, "/runtime/precision"),
    ],
)
def test_any_other_change_has_to_be_allowed_by_name(values, pointer):
    assert refused(**values) == [pointer]
    path = pointer.lstrip("/").replace("/", ".")
    assert refused([path], **values) == []
    assert refused([path.rpartition(".")[0]], **values) == []
    assert refused([f"{path}x"], **values) == [pointer]


def spec_of(**values):
    return check_text(text_of(changed(**values))).spec


@pytest.fixture(scope="module")
def batches():
    return build(spec_of()).batches


def test_a_checkpoint_knows_what_decides_the_course_of_its_run_and_not_how_long_it_is(batches):
    saved = description_of(spec_of(), batches)
    check_description(saved, spec_of(**{"strategy/num_steps": 9, "strategy/early_stopping": {"patience": 3}}), batches)
    with pytest.raises(StructureMismatchError, match=r"1 fields differ:\n  spec\.strategy\.update\.2\.b1: saved 0\.9, now 0\.5"):
        check_description(saved, spec_of(**{"strategy/update/2/b1": 0.5}), batches)
    check_description(saved, spec_of(**{"strategy/update/2/b1": 0.5}), batches, allowed=["strategy.update"])


def test_other_data_is_named_field_by_field_and_allowed_by_the_field_of_the_spec(batches):
    other = spec_of(**{"dataset/batch_size": 8})
    with pytest.raises(StructureMismatchError, match=r"data\.global_batch_size: saved 4, now 8"):
        check_description(description_of(spec_of(), batches), other, build(other).batches)
    check_description(description_of(spec_of(), batches), other, build(other).batches, allowed=["dataset.batch_size"])
