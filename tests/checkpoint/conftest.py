"""Small states that hold every kind of leaf, shared by the checkpoint tests."""

import pathlib
import tempfile

import pytest
import torch

from purestep.core import tree
from purestep.core.state import Counters, TrainState
from tests.checkpoint.resuming import run

MEMORY = pathlib.Path("/dev/shm")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """State and log of the run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("whole") / "root")


@pytest.fixture
def make_state():
    """Build a training state from a number: other numbers, other values, the same structure."""

    def make(seed: int = 0, batch_count: int = 0, width: int = 4) -> TrainState:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        params = {"layer.weight": normal(width, 3), "layer.bias": normal(width).to(torch.bfloat16), "embed.weight": normal(5, 3).float()}
        moments = {name: normal(*leaf.shape).float() for name, leaf in params.items()}
        numbers = [torch.tensor(value) for value in (batch_count, batch_count // 2, batch_count // 2, 0, batch_count)]
        return TrainState(
            params=params,
            buffers={"norm.running_mean": normal(3), "norm.num_batches_tracked": torch.tensor(seed)},
            opt_state={"scale_by_adam": {"count": torch.tensor(seed), "mu": moments}, "skip": (torch.tensor(True), torch.empty(0, 3))},
            hook_state={"ema": {"params": tree.map(torch.clone, params)}, "spectrum": torch.complex(normal(2), normal(2))},
            counters=Counters(*numbers),
            seed=torch.tensor(17),
            aliases=(("head.weight", "embed.weight"),),
        )

    return make


@pytest.fixture
def assert_same():
    """Compare two trees bit for bit: paths, types, dtypes, shapes, bytes."""

    def check(found, expected) -> None:
        assert tree.structure(found) == tree.structure(expected)
        for (path, one), (_, other) in zip(tree.items(found), tree.items(expected), strict=True):
            assert type(one) is type(other), path
            if isinstance(one, torch.Tensor):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), path
                bits = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
                assert torch.equal(*bits), path
            else:
                assert repr(one) == repr(other), path

    return check


@pytest.fixture
def scratch(tmp_path):
    """An empty directory, in memory where the system has such a place: thousands of saves, none of which has to outlive a power loss."""
    with tempfile.TemporaryDirectory(dir=tmp_path if not MEMORY.is_dir() else MEMORY) as path:
        yield pathlib.Path(path)
