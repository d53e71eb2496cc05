"""A leaf is idle if the share of no rank reaches it; branches that depend on the data train as on one process."""

import pytest
import torch

from purestep.distributed import Topology
from tests.distributed import branches, scenarios
from tests.distributed.processes import run_ranks

pytestmark = pytest.mark.distributed
TOLERANCE = 1e-12  # sums of a few terms in another order, six updates

EAGER = [(seed, optimizer, stage, None) for seed, optimizer in enumerate(branches.OPTIMIZERS) for stage in scenarios.STAGES]
CAPTURED = [(4, "adamw", "nothing", "eager"), (5, "window", "parameters", "eager")]


@pytest.mark.parametrize(
    ("world_size", "num_steps", "cases"), [(2, 6, EAGER), (3, 4, EAGER), (2, 4, CAPTURED)], ids=["2 ranks", "3 ranks", "captured"]
)
def test_any_branches_on_any_rank_give_the_state_of_one_process(world_size, num_steps, cases):
    cases = [(seed, world_size, num_steps, *rest) for seed, *rest in cases]
    by_rank = run_ranks(world_size, branches.trained_all, cases)
    for number, (seed, _, _, optimizer, *rest) in enumerate(cases):
        alone = branches.trained(Topology(), seed, world_size, num_steps, optimizer)
        assert [differences(results[number], alone) for results in by_rank] == [[]] * world_size, (optimizer, *rest)


def differences(one, other):
    """Leaves of `one` that differ from those of one process."""
    close = dict(rtol=TOLERANCE, atol=TOLERANCE)
    alike = {name: leaf for name, leaf in other.items() if name != "counters.global_step_count"}
    return [name for name, leaf in alike.items() if not torch.allclose(one[name].double(), leaf.double(), **close)]
