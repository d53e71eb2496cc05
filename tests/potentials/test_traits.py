"""What existing potentials do that makes a step hard to capture, each on a small function or model of ours: no package is needed."""

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.potentials.trainings import make_training, run


def captured(step):
    return ps.compile(step, backend="eager", on_recompile="ignore")


def _by_column(rows):
    filled = rows.new_zeros(len(rows), 2)
    filled[:, 0] = rows
    return torch.cat([filled, filled])


def _by_part(rows):
    filled = torch.cat([rows * 0, rows])
    first, second = filled.split(len(rows))
    first.add_(second)
    return filled


def _by_list(rows):
    filled = torch.zeros_like(rows)
    torch._foreach_add_([filled], [rows])
    return filled


@pytest.mark.parametrize("fill", [_by_column, _by_part, _by_list])
def test_a_guard_knows_what_was_written_through_a_view(fill):
    step = captured(lambda x, batch: (x * int(fill(batch["rows"]).max()), None))  # CHGNet counts the owners of bonds like this
    few, many = ({"rows": torch.tensor([1, 2, last])} for last in (3, 7))
    for batch in (few, many, few):
        assert step(torch.ones(()), batch)[0] == batch["rows"].max()
    assert len(step.explain()) == 2


def test_the_numbers_of_structures_read_from_their_indices_are_guarded():
    step = captured(lambda x, batch: (x.new_zeros(int(batch["owner"][-1]) + 1).index_add(0, batch["owner"], x), None))  # SchNetPack
    for owner, expected in (([0, 0, 1], [2.0, 1.0]), ([0, 1, 2], [1.0, 1.0, 1.0]), ([0, 0, 1], [2.0, 1.0])):
        assert step(torch.ones(3), {"owner": torch.tensor(owner)})[0].tolist() == expected
    assert len(step.explain()) == 2


LISTS = {
    "tensor": lambda x: torch.tensor([x.sum(), x.max()]),
    "nested, with numbers": lambda x: torch.tensor([[x.sum(), 1], [x.max(), 2.5]], dtype=torch.float64),
    "as_tensor": lambda x: torch.as_tensor((x.sum(), x.argmax())),
    "asarray": lambda x: torch.asarray([x.sum()]),
    "new_tensor": lambda x: x.new_tensor([x.argmax(), 1]),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_tensor_made_from_a_list_of_tensors_is_not_frozen(name):
    step = captured(lambda state, batch: (state, LISTS[name](batch["x"])))  # CHGNet puts volumes together like this
    for values in ([1.0, 2.0], [5.0, 3.0]):
        x = torch.tensor(values)
        assert_trees_equal(step(torch.ones(1), {"x": x})[1], LISTS[name](x))
    assert len(step.explain()) == 1


class _Scripted(nn.Module):
    """Pair energies by a TorchScript module, forces by autograd in the forward: MACE's traits."""

    def __init__(self):
        super().__init__()
        self.pairs = torch.jit.script(nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1)))

    def forward(self, batch):
        batch["positions"].requires_grad_(True)
        distances = (batch["positions"][0] - batch["positions"][1:]).norm(dim=1, keepdim=True)
        energy = self.pairs(distances).sum()
        (slope,) = torch.autograd.grad(energy, batch["positions"], create_graph=self.training)
        return energy, -slope


def _scripted_loss(model, batch):
    energy, forces = model(batch)
    return (energy - batch["energy"]).square() + (forces - batch["forces"]).square().sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_a_model_of_torchscript_that_differentiates_itself_is_captured():
    torch.manual_seed(0)
    training = make_training(_Scripted().double(), _scripted_loss)
    gen = torch.Generator().manual_seed(1)
    shapes = {"positions": (4, 3), "forces": (4, 3), "energy": ()}
    batches = [{name: torch.randn(shape, generator=gen, dtype=torch.float64) for name, shape in shapes.items()} for _ in range(3)]
    step = captured(training.step)
    # TorchScript, run eagerly, fuses after its first calls, and then rounds otherwise
    assert_trees_close(run(step, training, batches), run(training.step, training, batches), rtol=1e-10, atol=1e-12)
    assert len(step.explain()) == 1
