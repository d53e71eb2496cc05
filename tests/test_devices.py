"""A step stays on the device of its state: nothing is made elsewhere, and no number comes back to the host.

The device here is meta, which has no values: whoever asks for one raises.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from purestep.core import tree
from tests.examples_of_models import batches, molecules, potential_training, training
from tests.hooks.examples import NAMES
from tests.hooks.test_laws import small_step
from tests.transform_examples import TABLE, example, example_params, extras, gradient


class _Elsewhere(TorchDispatchMode):
    """Notes the operations whose results are on another device than meta."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {x.device.type for x in tree.leaves(result) if isinstance(x, torch.Tensor)} - {"meta"}
        self.found += [f"{func} on {device}" for device in devices]
        return result


def assert_stays(function, *arguments):
    away = tree.map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, arguments)
    with _Elsewhere() as elsewhere:
        result = function(*away)
    assert elsewhere.found == []
    assert {x.device.type for x in tree.leaves(result) if isinstance(x, torch.Tensor)} == {"meta"}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_update_stays_on_the_device(name):
    transform, params = example(name), example_params()
    assert_stays(lambda *given: transform.update(*given[:3], **given[3]), gradient(params), transform.init(params), params, extras(params))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_with_a_hook_stays_on_the_device(name):
    assert_stays(*small_step(name))


def test_steps_of_models_stay_on_the_device():
    for tr, batch in ((training(), batches(1)[0]), (potential_training("painn"), molecules()), (potential_training("schnet"), molecules())):
        assert_stays(tr.step, tr.init(), batch)
