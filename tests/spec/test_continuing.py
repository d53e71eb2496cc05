import pytest

from purestep.spec.continuing import changes, unsafe
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
    ],
    ids=["nothing", "output", "device and words", "longer"],
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
