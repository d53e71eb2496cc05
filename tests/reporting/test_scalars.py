import io
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from purestep.core.hook import Stage
from purestep.loop import fit
from purestep.reporting import ConsoleProgress, CsvWriter, JsonlWriter, TensorBoardWriter, read_scalars


def test_read_scalars_keeps_order_and_values_of_every_dtype():
    metrics = {
        "double": torch.tensor(0.1, dtype=torch.float64),
        "single": torch.tensor([0.25]),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "count": torch.tensor(3),
        "flag": torch.tensor(True),
        "number": 7,
    }
    read = read_scalars(metrics)
    assert list(read.items()) == [("double", 0.1), ("single", 0.25), ("half", 0.5), ("count", 3.0), ("flag", 1.0), ("number", 7.0)]
    assert {type(value) for value in read.values()} == {float}


def test_read_scalars_leaves_out_what_is_no_scalar():
    metrics = {"vector": torch.ones(2), "text": "no", "complex": torch.ones((), dtype=torch.complex64), "empty": torch.ones(0)}
    assert read_scalars(metrics) == {}


def test_read_scalars_passes_what_is_not_finite():
    read = read_scalars({"nan": torch.tensor(math.nan), "inf": torch.tensor(-math.inf)})
    assert math.isnan(read["nan"])
    assert read["inf"] == -math.inf


def test_read_scalars_needs_no_gradient():
    assert read_scalars({"loss": torch.tensor(2.0, requires_grad=True)}) == {"loss": 2.0}


class CountReads(TorchFunctionMode):
    """Notes each time a value of a tensor is asked for by the host; on a GPU each waits for it."""

    READS = frozenset({"item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__", "__array__", "__format__"})

    def __init__(self):
        super().__init__()
        self.reads = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        if getattr(function, "__name__", "") in self.READS:
            self.reads.append(function.__name__)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: JsonlWriter(path / "m.jsonl", every_n_batches=5),
        lambda path: CsvWriter(path / "m.csv", every_n_batches=5),
        lambda path: TensorBoardWriter(path / "tb", every_n_batches=5),
        lambda path: ConsoleProgress(every_n_batches=5, mode="plain", file=io.StringIO()),
    ],
    ids=["jsonl", "csv", "tensorboard", "console"],
)
def test_metrics_are_read_in_one_go_at_a_report_and_not_at_all_between(training, batches, tmp_path, make):
    counting, reads = CountReads(), {}

    def note(event):
        if event.stage is Stage.AFTER_BATCH:
            reads[event.batch_count] = [*counting.reads]
        counting.reads.clear()

    with counting:
        fit(training, batches, num_batches=14, listeners=[make(tmp_path), note])
    metrics = {batch: [name for name in found if name != "__int__"] for batch, found in reads.items()}  # a report says which step it is
    assert {batch: found for batch, found in metrics.items() if found} == {5: ["tolist"], 10: ["tolist"]}
    assert {batch for batch, found in reads.items() if found} == {5, 10}
