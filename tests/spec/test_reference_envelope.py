"""Documents of the other toolkit load: the examples of its guide, and whole ones; what cannot be the same run is refused."""

import copy
import json

import pytest

import purestep as ps
from purestep.spec.building import build
from purestep.spec.merging import merge
from purestep.spec.positions import line_and_column
from purestep.spec.reading import check_text, notes_of
from purestep.spec.reference_envelope import from_reference
from purestep.spec.versions import upgrade, version_of
from tests.spec.examples import GOOD, text_of
from tests.spec.reference_examples import GUIDE_HOOKS, GUIDE_MODEL, WHOLE


def whole(**strategy):
    document = copy.deepcopy(WHOLE)
    document["strategy"] |= strategy
    return document


def with_hook(name, **arguments):
    document = copy.deepcopy(WHOLE)
    document["source"]["hooks"] = [{"spec": {"cls_path": f"nvalchemi.training.hooks.{name}", "timestamp": "now", **arguments}}]
    return document


def optimizer(cls, scheduler=None, scheduler_kwargs=None, **arguments):
    config = {"optimizer_cls": f"torch.optim.{cls}", "optimizer_kwargs": arguments}
    return {"main": [config | ({"scheduler_cls": scheduler, "scheduler_kwargs": scheduler_kwargs} if scheduler else {})]}


def read(document):
    spec, problems = check_text(text_of(document))
    assert problems == ()
    return spec


def test_the_hooks_of_the_guide_become_settings():
    spec = read(merge(GOOD, GUIDE_HOOKS))
    assert (spec.dataset.cutoff, spec.output.checkpoints.every_n_steps) == (6.0, 500)
    assert [hook.kind for hook in spec.strategy.hooks] == ["ema"]
    assert spec.source is None


def test_the_model_of_the_guide_is_merged_into_a_spec():
    merged = merge(GOOD, GUIDE_MODEL)
    assert read(merged).strategy.model_specs["main"].arguments == {"hidden_size": 128, "num_layers": 4}
    assert merged["strategy"]["update"] == GOOD["strategy"]["update"]


def test_a_whole_document_is_the_run_that_its_own_toolkit_would_make():
    strategy = read(WHOLE).strategy
    (adamw,) = strategy.update
    assert (adamw.kind, adamw.weight_decay, adamw.b1, strategy.schedule) == ("adamw", 1e-6, 0.9, 1e-4)
    assert [(term.kind, term.per_atom) for term in strategy.loss[:1]] == [("EnergyMSELoss", True)]
    assert (strategy.loss[1].weight.kind, strategy.normalize_weights, strategy.trainable) == ("LinearWeight", False, ("*",))
    assert read(WHOLE).runtime.device == "cpu"


def test_a_whole_document_can_be_built():
    pieces = build(read(WHOLE))
    assert isinstance(pieces.training, ps.Training)


def test_every_change_is_noted():
    notes = notes_of(text_of(WHOLE))
    assert "dataset.path: dataset.paths" in notes
    assert "spec_version: 1" in notes
    assert any(note.startswith("strategy.optimizer_configs: ") for note in notes)


def test_a_document_of_ours_is_left_as_it_is():
    assert from_reference(GOOD)[0] == GOOD
    assert notes_of(text_of(GOOD)) == ()


@pytest.mark.parametrize(
    ("configs", "update", "schedule"),
    [
        (optimizer("SGD", lr=0.1, momentum=0.9), {"kind": "sgd", "momentum": 0.9, "nesterov": False, "dampening": 0.0}, 0.1),
        (optimizer("Adam", lr=0.1, betas=[0.8, 0.9]), {"kind": "adam", "b1": 0.8, "b2": 0.9, "eps": 1e-8}, 0.1),
        (
            optimizer("AdamW", "torch.optim.lr_scheduler.StepLR", {"step_size": 2, "gamma": 0.5}),
            {"kind": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
            {"kind": "exponential_decay", "init_value": 1e-3, "decay_rate": 0.5, "transition_steps": 2, "staircase": True},
        ),
        (
            optimizer("SGD", "torch.optim.lr_scheduler.CosineAnnealingLR", {"T_max": 10, "eta_min": 0.01}, lr=0.1),
            {"kind": "sgd", "momentum": None, "nesterov": False, "dampening": 0.0},
            {"kind": "cosine_decay", "init_value": 0.1, "decay_steps": 10, "alpha": 0.09999999999999999},
        ),
    ],
    ids=["SGD", "Adam", "StepLR", "CosineAnnealingLR"],
)
def test_optimizers_and_schedulers_are_those_of_torch(configs, update, schedule):
    document = from_reference(whole(optimizer_configs=configs))[0]["strategy"]
    assert document["update"] == [update]
    assert document["schedule"] == (schedule if isinstance(schedule, float) else pytest.approx(schedule))
    read(whole(optimizer_configs=configs))


@pytest.mark.parametrize(
    ("document", "pointer", "message"),
    [
        (whole(optimizer_configs=optimizer("LBFGS", lr=1)), "/strategy/optimizer_configs/main", "AdamW, Adam and SGD"),
        (whole(optimizer_configs=optimizer("SGD", weight_decay=0.1)), "/strategy/optimizer_configs/main", "SGD with weight_decay"),
        (whole(optimizer_configs=optimizer("Adam", betas=3)), "/strategy/optimizer_configs/main", "Adam with betas"),
        (whole(optimizer_configs={"a": [], "b": []}), "/strategy/optimizer_configs", "one optimizer of one model"),
        (whole(optimizer_configs=optimizer("SGD", "x.LambdaLR", {})), "/strategy/optimizer_configs/main", "LambdaLR has no counterpart"),
        (whole(loss_fn_spec={"cls_path": "my.Loss"}), "/strategy/loss_fn_spec", "component 0 is Loss"),
        (whole(loss_fn_spec=3), "/strategy/loss_fn_spec", "expected an object"),
        (whole(epoch_step_modifier=0.25), "/strategy/epoch_step_modifier", "no counterpart"),
        (whole(training_fn="my.module.fn"), "/strategy/training_fn", "no counterpart"),
        (whole(freeze_mode="optimizer_only"), "/strategy/freeze_mode", "no counterpart"),
        ({**WHOLE, "source": {"model": "mace", "model_id": None}}, "/source/model", "cannot be fetched"),
        (with_hook("StageTimingHook"), "/strategy/hooks/0", "StageTimingHook"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_counterpart_is_refused_where_it_stands(document, pointer, message):
    found = [problem for problem in check_text(text_of(document)).problems if problem.code == "PS111"]
    assert [problem.pointer for problem in found] == [pointer]
    assert message in found[0].message
    assert found[0].line > 0


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        (with_hook("EMAHook", model_key="main", decay=0.5, update_every=2), lambda spec: spec.strategy.hooks[0].decay == 0.5),
        (with_hook("MixedPrecisionHook", precision="torch.bfloat16"), lambda spec: spec.runtime.precision == "bf16"),
        (with_hook("MixedPrecisionHook", precision="fp16"), lambda spec: spec.strategy.update[0].kind == "dynamic_loss_scale"),
        (with_hook("CheckpointHook", epoch_interval=2), lambda spec: spec.output.checkpoints.every_n_epochs == 2),
        (with_hook("NeighborListHook", config={"cutoff": 4.0}), lambda spec: spec.dataset.cutoff == 4.0),
    ],
    ids=["EMAHook", "bf16", "fp16", "CheckpointHook", "NeighborListHook"],
)
def test_hooks_of_the_other_toolkit_become_what_does_the_same(hook, where):
    assert where(read(hook))


def test_a_problem_of_a_value_that_has_moved_is_found_where_it_stands_in_the_file():
    text = json.dumps({**WHOLE, "dataset": {"path": 3}}, indent=2)
    (problem,) = check_text(text).problems
    assert (problem.pointer, problem.code) == ("/dataset/paths/0", "PS104")
    assert (problem.line, problem.column) == line_and_column(text, text.index("3\n"))


@pytest.mark.parametrize("value", [None, 3, "x", [], [3], {"a": 3}], ids=json.dumps)
@pytest.mark.parametrize(
    "key", ["optimizer_configs", "loss_fn_spec", "hooks", "devices", "trainable_patterns", "model_specs", "training_fn"]
)
def test_values_of_any_type_are_problems_and_no_crashes(key, value):
    check_text(text_of(whole(**{key: value})))
    for section in ("source", "dataset", "output", "strategy"):
        check_text(text_of({**WHOLE, section: value}))
        check_text(text_of({**WHOLE, section: {key: value}}))


def test_upgrading_writes_the_form_that_is_read():
    document, notes = upgrade(WHOLE)
    assert notes
    assert from_reference(document) == (document, ([], [], []))
    assert check_text(text_of(document)).spec == read(WHOLE)


def test_a_table_of_steps_is_walked_from_the_version_of_the_document_to_the_newest():
    table = {
        1: lambda document: ({**document, "spec_version": 2, "b": 1}, ["b"]),
        2: lambda document: ({**document, "spec_version": 3}, ["c"]),
    }
    assert upgrade({"spec_version": 1}, table, newest=3) == ({"spec_version": 3, "b": 1}, ("b", "c"))
    assert upgrade({"spec_version": 3}, table, newest=3) == ({"spec_version": 3}, ())


@pytest.mark.parametrize("document", [{"spec_version": 2}, {"spec_version": "1"}, {}, [], 3, {"spec_version": True}, {"spec_version": -1}])
def test_what_is_of_no_version_that_we_know_stays_as_it_is(document):
    assert upgrade(document) == (document, ())
    assert version_of(document) != 0
