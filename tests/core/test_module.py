"""Modules as functions: leaves once each, ties, buffers, modes; the user's module is never touched."""

import copy

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.core.module import Skeleton, frozen_buffers, frozen_by_user, make_layout, read
from purestep.errors import ModuleError
from purestep.testing import assert_trees_equal
from tests.examples_of_models import WIDTH, Net, batches, seeded, training


def parts_of(model):
    layout = make_layout(model)
    return layout, read(model, layout, "_parameters"), read(model, layout, "_buffers")


def call(model, x, *, training):
    layout, params, buffers = parts_of(model)
    skeleton = Skeleton(model, layout, training=training)
    return skeleton.call(lambda models, x: models(x), params, buffers, x)


def test_a_tied_parameter_and_a_shared_module_are_one_leaf_each_with_their_other_names_kept():
    layout, params, _ = parts_of(seeded(Net))
    assert sorted(params) == ["encoder.bias", "encoder.weight", "first.bias", "first.weight", "norm.bias", "norm.weight"]
    assert dict(layout.aliases) == {
        "decoder.weight": "encoder.weight",
        "second.weight": "first.weight",
        "second.bias": "first.bias",
    }


def test_leaves_share_no_memory_with_the_module():
    model = seeded(Net)
    _, params, buffers = parts_of(model)
    own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    assert own.isdisjoint(leaf.data_ptr() for leaf in (*params.values(), *buffers.values()))


@pytest.mark.parametrize("mode", [True, False])
def test_a_call_gives_the_numbers_of_the_module(mode):
    model, x = seeded(Net), batches(1)[0]["x"]
    model.dropout.p = 0.0
    ours, buffers = call(model, x, training=mode)
    theirs = copy.deepcopy(model).train(mode)
    assert torch.equal(ours, theirs(x))
    assert_trees_equal(buffers, {name: buffer for name, buffer in theirs.named_buffers()})


def test_the_module_of_the_user_is_the_same_object_with_the_same_tensors_and_mode():
    model = seeded(Net).eval()
    held = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters(remove_duplicate=False)}
    buffers = {name: (id(b), b.clone()) for name, b in model.named_buffers()}
    modes = [part.training for part in model.modules()]
    tr = training(model)
    state = tr.init()
    for batch in batches(3):
        state, _ = tr.step(state, batch)
    tr.evaluate(state, batches(1)[0])
    now = dict(model.named_parameters(remove_duplicate=False))
    assert all(id(now[name]) == identity and torch.equal(now[name], value) for name, (identity, value) in held.items())
    assert all(id(b) == buffers[name][0] and torch.equal(b, buffers[name][1]) for name, b in model.named_buffers())
    assert [part.training for part in model.modules()] == modes
    assert model.second is model.first
    assert model.decoder.weight is model.encoder.weight
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_call_never_writes_to_the_buffers_given():
    model, x = seeded(Net), batches(1)[0]["x"]
    layout, params, buffers = parts_of(model)
    before = ps.tree.clone(buffers)
    _, after = Skeleton(model, layout, training=True).call(lambda models, x: models(x), params, buffers, x)
    assert_trees_equal(buffers, before)
    assert after["norm.num_batches_tracked"].item() == 1


class Sine(nn.Module):
    """A parameter kept where modules do not look."""

    def __init__(self, holder):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.hidden = holder(nn.Parameter(torch.ones(WIDTH)))

    def forward(self, x):
        return self.linear(x).sin()


@pytest.mark.parametrize("holder", [lambda p: [p], lambda p: (p,), lambda p: {"key": p}])
def test_a_parameter_in_a_plain_container_is_refused_by_its_place(holder):
    with pytest.raises(ModuleError, match="hidden holds a parameter that the module has not registered"):
        make_layout(Sine(holder))


def test_registered_lists_of_parameters_are_found():
    params = parts_of(Sine(lambda p: nn.ParameterList([p])))[1]
    assert "hidden.0" in params


def test_a_parameter_without_a_shape_is_refused():
    with pytest.raises(ModuleError, match=r"weight has no shape yet; run one batch"):
        make_layout(nn.LazyLinear(3))


def test_what_is_no_module_is_refused_by_name():
    with pytest.raises(ModuleError, match="'teacher' is a function, expected an nn"):
        make_layout({"student": nn.Linear(1, 1), "teacher": lambda x: x})


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.stream = (number for number in range(3))


def test_a_module_that_cannot_be_copied_says_what_to_do():
    model = Stubborn()
    with pytest.raises(ModuleError, match=r"Stubborn cannot be copied .* give the module a __deepcopy__"):
        Skeleton(model, make_layout(model), training=True)


def test_a_tensor_that_two_models_share_is_one_leaf_of_the_first():
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
    teacher.weight = student.weight
    models = {"student": student, "teacher": teacher}
    layout, params, _ = parts_of(models)
    assert {model: sorted(inside) for model, inside in params.items()} == {"student": ["bias", "weight"], "teacher": ["bias"]}
    assert layout.aliases == (("teacher.weight", "student.weight"),)
    skeleton = Skeleton(models, layout, training=True)
    doubled = {**params, "student": {**params["student"], "weight": 2 * params["student"]["weight"]}}
    seen, _ = skeleton.call(lambda models: models["teacher"].weight is models["student"].weight, doubled, {"student": {}, "teacher": {}})
    assert seen


def test_a_module_shared_by_two_models_is_called_with_one_set_of_leaves():
    trunk = nn.BatchNorm1d(2)
    models = {"a": nn.Sequential(trunk, nn.Linear(2, 1)), "b": nn.Sequential(trunk, nn.Linear(2, 1))}
    layout, params, buffers = parts_of(models)
    assert sorted(params["b"]) == ["1.bias", "1.weight"]
    _, after = Skeleton(models, layout, training=True).call(
        lambda models, x: models["a"](x) + models["b"](x), params, buffers, torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    )
    assert after["a"]["0.num_batches_tracked"].item() == 2


def test_parameters_with_requires_grad_false_are_frozen_by_the_user():
    model = seeded(Net)
    model.norm.weight.requires_grad_(False)
    assert frozen_by_user(model, make_layout(model)) == {"norm.weight"}


def test_buffers_are_frozen_with_the_parameters_of_the_nearest_module_that_has_any():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2, affine=False))
    )
    layout = make_layout(model)
    frozen = frozen_buffers(model, layout, frozenset({"1.weight", "1.bias"}))
    assert {name.rpartition(".")[0] for name in frozen} == {"0.1"}


def test_children_put_into_eval_mode_stay_there_in_training():
    model, x = seeded(Net), batches(1)[0]["x"]
    model.norm.eval()
    _, buffers = call(model, x, training=True)
    assert buffers["norm.num_batches_tracked"].item() == 0


def test_a_module_given_in_eval_mode_as_a_whole_is_trained_in_train_mode():
    _, buffers = call(seeded(Net).eval(), batches(1)[0]["x"], training=True)
    assert buffers["norm.num_batches_tracked"].item() == 1


def test_recurrent_layers_use_the_leaves_they_are_given():
    model = seeded(nn.GRU, 3, 2, batch_first=True)
    layout, params, _ = parts_of(model)
    x = torch.ones(1, 4, 3, dtype=torch.float64)
    doubled = ps.tree.map(lambda p: 2 * p, params)
    ours, _ = Skeleton(model, layout, training=True).call(lambda models, x: models(x)[0], doubled, {}, x)
    theirs = copy.deepcopy(model)
    theirs.load_state_dict(doubled)
    # the skeleton's weights are not one block, so another kernel may run
    assert torch.allclose(ours, theirs(x)[0], rtol=0, atol=1e-14)


def test_buffers_that_the_forward_replaces_come_back():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + x.sum()
            return x * self.weight

    _, buffers = call(Counter(), torch.ones(3), training=True)
    assert buffers["seen"].item() == 3.0


def test_a_compiled_module_is_trained_as_the_module_that_it_wraps():
    model = seeded(Net)
    plain, compiled = training(model), training(torch.compile(model, backend="eager"))
    assert ps.tree.paths(compiled.init()) == ps.tree.paths(plain.init())
    batch = batches(1)[0]
    assert_trees_equal(compiled.step(compiled.init(), batch), plain.step(plain.init(), batch))
