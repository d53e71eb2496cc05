"""What is wrong is found, all at once, with code, place and the nearest right name. No model is made and no data is read."""

import pytest

from purestep.spec.problems import CODES
from purestep.spec.reading import check_text
from tests.spec.examples import GONE, GOOD, changed, text_of

UPDATE, LOSS, SCHEDULE, HOOK = "strategy/update/2", "strategy/loss/0", "strategy/schedule", "strategy/hooks/0"
ADAMW = {"kind": "adamw"}
LINEAR = {"kind": "linear", "init_value": 1, "end_value": 0, "transition_steps": 10}

# what is changed, code, pointer, a part of the message
CASES = [
    # unknown fields, with the nearest right one
    ({"dataset/batchsize": 4}, "PS101", "/dataset/batchsize", "did you mean 'batch_size'"),
    ({"strategy/num_stpes": 4}, "PS101", "/strategy/num_stpes", "did you mean 'num_steps'"),
    ({"optimizer": {}}, "PS101", "/optimizer", "known: $schema, dataset"),
    ({"output/checkpoints/every_n_step": 4}, "PS101", "/output/checkpoints/every_n_step", "did you mean 'every_n_steps'"),
    ({"runtime/sed": 4}, "PS101", "/runtime/sed", "did you mean 'seed'"),
    ({"validation/use_emma": True}, "PS101", "/validation/use_emma", "did you mean 'use_ema'"),
    ({f"{UPDATE}/weight_decy": 0.1}, "PS101", "/strategy/update/2/weight_decy", "did you mean 'weight_decay'"),
    ({f"{LOSS}/wieght": 0.1}, "PS101", "/strategy/loss/0/wieght", "did you mean 'weight'"),
    ({f"{SCHEDULE}/peak_valu": 0.1}, "PS101", "/strategy/schedule/peak_valu", "did you mean 'peak_value'"),
    ({f"{HOOK}/decy": 0.1}, "PS101", "/strategy/hooks/0/decy", "did you mean 'decay'"),
    ({f"{HOOK}/debias_": True}, "PS101", "/strategy/hooks/0/debias_", "did you mean 'debias'"),
    ({"x~y": 1}, "PS101", "/x~0y", "unknown field"),
    # unknown kinds
    ({"strategy/update/1/kind": "clip_by_global_nrom"}, "PS102", "/strategy/update/1/kind", "did you mean 'clip_by_global_norm'"),
    ({f"{SCHEDULE}/kind": "cosin"}, "PS102", "/strategy/schedule/kind", "did you mean 'cosine_decay'"),
    ({f"{LOSS}/kind": "EnergyMSE"}, "PS102", "/strategy/loss/0/kind", "did you mean 'EnergyMSELoss'"),
    ({f"{HOOK}/kind": "emma"}, "PS102", "/strategy/hooks/0/kind", "did you mean 'ema'"),
    ({f"{UPDATE}/kind": "cosine_decay"}, "PS102", "/strategy/update/2/kind", "belongs to the family 'schedule'"),
    ({f"{LOSS}/kind": "adam"}, "PS102", "/strategy/loss/0/kind", "belongs to the family 'update'"),
    ({"validation/metrics/0/kind": "EnergyError"}, "PS102", "/validation/metrics/0/kind", "did you mean 'EnergyErrors'"),
    # missing fields
    ({"dataset": GONE}, "PS103", "", "'dataset' is missing"),
    ({"spec_version": GONE}, "PS103", "", "'spec_version' is missing"),
    ({"dataset/paths": GONE}, "PS103", "/dataset", "'paths' is missing"),
    ({"output/run_dir": GONE}, "PS103", "/output", "'run_dir' is missing"),
    ({f"{UPDATE}/kind": GONE}, "PS103", "/strategy/update/2", "'kind' is missing"),
    ({"strategy/update/1/max_norm": GONE}, "PS103", "/strategy/update/1", "'max_norm' is missing"),
    ({f"{SCHEDULE}/decay_steps": GONE}, "PS103", "/strategy/schedule", "'decay_steps' is missing"),
    ({"strategy/model_specs/main/cls_path": GONE}, "PS103", "/strategy/model_specs/main", "'cls_path' is missing"),
    ({SCHEDULE: GONE}, "PS103", "/strategy/update/2", "'learning_rate' is missing"),
    # types, without conversions
    ({f"{UPDATE}/learning_rate": "1e-4"}, "PS104", "/strategy/update/2/learning_rate", "without quotes"),
    ({"strategy/num_steps": True}, "PS104", "/strategy/num_steps", "expected a whole number, got true"),
    ({"strategy/num_steps": 2.5}, "PS104", "/strategy/num_steps", "expected a whole number, got 2.5"),
    ({f"{UPDATE}/b1": True}, "PS104", "/strategy/update/2/b1", "expected a number, got true"),
    ({f"{UPDATE}/nesterov": 1}, "PS104", "/strategy/update/2/nesterov", "expected true or false, got 1"),
    ({f"{UPDATE}/mask": 3}, "PS104", "/strategy/update/2/mask", "expected text or list"),
    ({"name": 3}, "PS104", "/name", "expected text, got 3"),
    ({"dataset/paths": "a.zarr"}, "PS104", "/dataset/paths", "expected a list"),
    ({"strategy/update": ADAMW}, "PS104", "/strategy/update", "expected a list"),
    ({UPDATE: "adamw"}, "PS104", "/strategy/update/2", "expected an object"),
    ({f"{UPDATE}/kind": 3}, "PS104", "/strategy/update/2/kind", "expected text, got 3"),
    ({SCHEDULE: "cosine_decay"}, "PS104", "/strategy/schedule", "object with a 'kind'"),
    ({"dataset": []}, "PS104", "/dataset", "expected an object"),
    ({"strategy/model_specs/main": "PaiNN"}, "PS104", "/strategy/model_specs/main", "expected an object"),
    ({f"{LOSS}/weight": "10"}, "PS104", "/strategy/loss/0/weight", "without quotes"),
    ({"runtime/seed": None}, "PS104", "/runtime/seed", "expected a whole number, got null"),
    # ranges and choices
    ({"strategy/num_steps": -1}, "PS105", "/strategy/num_steps", "greater than 0, got -1"),
    ({"strategy/num_steps": 0}, "PS105", "/strategy/num_steps", "greater than 0"),
    ({"strategy/num_steps": 10**30}, "PS105", "/strategy/num_steps", "at most 9007199254740992"),
    ({"dataset/batch_size": 0}, "PS105", "/dataset/batch_size", "greater than 0"),
    ({"runtime/seed": -1}, "PS105", "/runtime/seed", "at least 0"),
    ({"dataset/cutoff": -3.0}, "PS105", "/dataset/cutoff", "greater than 0"),
    ({"dataset/paths": []}, "PS105", "/dataset/paths", "at least 1 item"),
    ({"strategy/loss": []}, "PS105", "/strategy/loss", "at least 1 item"),
    ({"name": ""}, "PS105", "/name", "must not be empty"),
    ({"workflow": "trian"}, "PS105", "/workflow", "did you mean 'train'"),
    ({"runtime/precision": "bf61"}, "PS105", "/runtime/precision", "did you mean 'bf16'"),
    ({f"{UPDATE}/mu_dtype": "flat32"}, "PS105", "/strategy/update/2/mu_dtype", "did you mean 'float32'"),
    ({f"{LOSS}/dtype_policy": "lax"}, "PS105", "/strategy/loss/0/dtype_policy", "strict"),
    ({"strategy/model_specs/main/cls_path": "PaiNN"}, "PS105", "/strategy/model_specs/main/cls_path", "dotted path"),
    ({"strategy/model_specs/main/cls_path": "a..b"}, "PS105", "/strategy/model_specs/main/cls_path", "dotted path"),
    ({f"{HOOK}/decay": 2}, "PS105", "/strategy/hooks/0", "decay must lie in [0, 1)"),
    ({"strategy/update/1/max_norm": -1}, "PS105", "/strategy/update/1", "max_norm"),
    ({f"{SCHEDULE}/decay_steps": 1}, "PS105", "/strategy/schedule", "decay_steps"),
    ({"strategy/loss/1/weight/num_steps": -9}, "PS105", "/strategy/loss/1/weight", "num_steps"),
    ({SCHEDULE: {"kind": "join", "schedules": [LINEAR, LINEAR], "boundaries": [5, 6]}}, "PS105", "/strategy/schedule", "boundaries"),
    # contradictions
    ({"strategy/num_epochs": 3}, "PS108", "/strategy", "exactly one"),
    ({"strategy/num_steps": GONE}, "PS108", "/strategy", "exactly one"),
    ({"output/sinks": [{"kind": "tensorbord"}]}, "PS102", "/output/sinks/0/kind", "did you mean 'tensorboard'"),
    ({"output/sinks": [{"kind": "wandb"}]}, "PS103", "/output/sinks/0", "'project' is missing"),
    ({"runtime/distributed": {"shard_state": "everything"}}, "PS105", "/runtime/distributed/shard_state", "optimizer"),
    ({"strategy/num_batches": 3}, "PS108", "/strategy", "exactly one"),
    ({"strategy/early_stopping": {"patience": 0}}, "PS105", "/strategy/early_stopping/patience", "greater than 0"),
    ({"runtime/deterministic": "wran"}, "PS105", "/runtime/deterministic", "warn"),
    ({"output/checkpoints/keep_every_hours": 0}, "PS105", "/output/checkpoints/keep_every_hours", "greater than 0"),
    ({f"{UPDATE}/learning_rate": 1e-3}, "PS108", "/strategy/schedule", "no part of update takes it"),
    ({"validation/every_n_steps": 5}, "PS108", "/validation/every_n_epochs", "not both"),
    ({"dataset/validation_split": GONE}, "PS108", "/validation", "nothing to validate on"),
    ({"runtime/compile": {"capture": "dynamo", "donate": True}}, "PS108", "/runtime/compile/donate", "cannot donate"),
    ({"runtime/compile": {"mode": "reduce-overhead"}}, "PS108", "/runtime/compile/mode", "needs donate"),
    ({"runtime/precision": "fp16"}, "PS108", "/runtime/precision", "dynamic_loss_scale"),
    ({"strategy/model_specs/other": {"cls_path": "a.B"}}, "PS108", "/strategy/model_specs", "several models"),
    ({"strategy/loss/0/weight": 0, "strategy/loss/1/weight": 0}, "PS108", "/strategy/loss", "weights"),
    # selections, targets, first weights
    (
        {UPDATE: {"kind": "partition", "transforms": {"a": ADAMW}, "param_labels": [["*", "b"]]}},
        "PS105",
        "/strategy/update/2",
        "no transform 'b'",
    ),
    ({UPDATE: {"kind": "partition", "transforms": {"a": ADAMW}, "param_labels": []}}, "PS105", "/strategy/update/2", "at least one pair"),
    (
        {UPDATE: {"kind": "partition", "transforms": {"a": ADAMW, "b": ADAMW}, "param_labels": [["*", "a"]]}},
        *("PS105", "/strategy/update/2", "no pattern has the label 'b'"),
    ),
    (
        {UPDATE: {"kind": "partition", "transforms": {"a": {"kind": "adamv"}}, "param_labels": [["*", "a"]]}},
        *("PS102", "/strategy/update/2/transforms/a/kind", "did you mean 'adam'"),
    ),
    ({UPDATE: {"kind": "masked", "inner": {**ADAMW, "b1": "x"}, "mask": "*"}}, "PS104", "/strategy/update/2/inner/b1", "expected a number"),
    ({UPDATE: {"kind": "masked", "inner": ADAMW}}, "PS103", "/strategy/update/2", "'mask' is missing"),
    ({UPDATE: {"kind": "chain", "parts": ADAMW}}, "PS104", "/strategy/update/2/parts", "expected a list"),
    ({HOOK: {"cls_path": "hooks"}}, "PS105", "/strategy/hooks/0/cls_path", "dotted path"),
    ({f"{LOSS}": {"cls_path": "a.B", "weight": "1"}}, "PS104", "/strategy/loss/0/weight", "without quotes"),
    ({UPDATE: {"cls_path": 3}}, "PS104", "/strategy/update/2/cls_path", "expected text"),
    ({"workflow": "finetune"}, "PS108", "/source", "finetune"),
    ({"source": {"checkpoint_path": "a"}}, "PS108", "/source", "finetune"),
    ({"workflow": "finetune", "source": {}}, "PS103", "/source", "'checkpoint_path' is missing"),
    ({"workflow": "finetune", "source": {"checkpoint_path": "a", "stp": 3}}, "PS101", "/source/stp", "did you mean 'step'"),
    ({"workflow": "finetune", "source": {"checkpoint_path": "a", "step": -3}}, "PS105", "/source/step", "at least 0"),
    ({"strategy/frozen": "embed*"}, "PS104", "/strategy/frozen", "expected a list"),
    # versions, and what JSON cannot say
    ({"spec_version": 2}, "PS109", "/spec_version", "reads version 1, got 2"),
    ({"spec_version": "1"}, "PS109", "/spec_version", 'got "1"'),
    ({"spec_version": True}, "PS109", "/spec_version", "got true"),
    ({"spec_version": 1.0}, "PS109", "/spec_version", "got 1.0"),
    ({f"{HOOK}/kind": "penalty"}, "PS110", "/strategy/hooks/0/kind", "JSON cannot hold"),
    ({f"{UPDATE}/kind": "conditionally_mask"}, "PS110", "/strategy/update/2/kind", "JSON cannot hold"),
]
TEXTS = [
    ("", "PS100", 1, 1, "ends here"),
    ("{", "PS100", 1, 2, "expected a key"),
    ('{\n  "a": 1,\n}', "PS100", 3, 1, "expected a key"),
    ("{'a': 1}", "PS100", 1, 2, "double quotes"),
    ('{"a": 1 // no\n}', "PS100", 1, 9, "expected ','"),
    ("[1, 2", "PS100", 1, 6, "expected ','"),
    ("{} {}", "PS100", 1, 4, "behind the end"),
    ('{"a": 01}', "PS100", 1, 8, "expected ','"),
    ('{"a": tru}', "PS100", 1, 7, "unexpected 't'"),
    ('{"a": "\\ud800"}', "PS100", 1, 7, "surrogate"),
    ('{"a": "b\\u0000"}', "PS100", 1, 7, "which no path and no name can hold"),
    ('{"a": "new\nline"}', "PS100", 1, 11, "control character"),
    ("[" * 100 + "]" * 100, "PS100", 1, 66, "deeper than 64"),
    ('{\n "name": "a",\n "name": "b"\n}', "PS106", 3, 2, "occurs twice"),
    ('{"name": NaN}', "PS107", 1, 10, "NaN"),
    ('{"name": -Infinity}', "PS107", 1, 10, "-Infinity"),
    ('{"name": 1e999}', "PS107", 1, 10, "1e999"),
]


def test_there_are_at_least_sixty_cases():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("changes", "code", "pointer", "message"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_wrong_is_found_with_its_code_and_place(changes, code, pointer, message):
    reading = check_text(text_of(changed(**changes)))
    assert reading.spec is None
    assert [(problem.code, problem.pointer) for problem in reading.problems] == [(code, pointer)]
    assert message in reading.problems[0].message
    assert reading.problems[0].line > 0


@pytest.mark.parametrize(("text", "code", "line", "column", "message"), TEXTS)
def test_what_is_wrong_with_the_text_is_found_with_its_line(text, code, line, column, message):
    first = next(problem for problem in check_text(text).problems if problem.code == code)
    assert (first.line, first.column) == (line, column)
    assert message in first.message


def test_the_good_spec_has_no_problems():
    assert check_text(text_of(GOOD)).problems == ()


def test_all_problems_are_found_at_once_in_the_order_of_the_text():
    spec = changed(**{"dataset/batchsize": 1, "strategy/update/1/kind": "clap", f"{UPDATE}/b1": "x", "runtime/seed": -1})
    assert [problem.code for problem in check_text(text_of(spec)).problems] == ["PS101", "PS102", "PS104", "PS105"]


def test_parts_that_their_functions_refuse_are_all_found():
    spec = changed(**{"strategy/update/1/max_norm": -1, f"{HOOK}/decay": 2, "strategy/loss/1/weight/num_steps": -9})
    assert {problem.pointer for problem in check_text(text_of(spec)).problems} == {
        "/strategy/update/1",
        "/strategy/hooks/0",
        "/strategy/loss/1/weight",
    }


def test_a_line_of_a_problem_is_that_of_the_key_or_the_value():
    text = '{\n  "spec_version": 1,\n  "workflow": "train",\n  "batchsize":\n    3\n}'
    lines = {problem.code: (problem.line, problem.column) for problem in check_text(text).problems}
    assert lines["PS101"] == (4, 3)
    assert lines["PS103"] == (1, 1)


def test_every_code_that_a_case_expects_is_explained():
    assert {code for _, code, _, _ in CASES} | {code for _, code, *_ in TEXTS} <= CODES.keys()
