"""The page for users of the ALCHEMI toolkit: our side runs as one program and does what the page says, its commands run too.

Their side is Python at least, and runs where the toolkit is installed.
"""

import ast
import contextlib
import copy
import dataclasses
import operator
import re
import shlex
import shutil
import textwrap
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import purestep as ps
from purestep.checkpoint import list_checkpoints
from purestep.cli import main
from purestep.core.hook import MAY_REPLACE, OWNED_BY_CHAIN
from purestep.errors import StructureMismatchError
from purestep.spec.reading import check_text, read_spec
from purestep.spec.recipes import from_spec
from purestep.testing import assert_trees_equal
from purestep.validation import validate
from tests.test_docs import ROOT, padded_snippets

PATH = ROOT / "docs/coming-from-alchemi.md"
PAGE = PATH.read_text(encoding="utf-8")
STORE = ROOT / "purestep/data/g2_xtb.zarr"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands():
    """The words of each command of ours, without the program and what starts it on several processes."""
    lines = textwrap.dedent("".join(blocks("console"))).replace("\\\n", " ").splitlines()
    return [shlex.split(re.sub(r"^\$ (purestep|torchrun .* -m purestep) ", "", line)) for line in lines]


def run(*words):
    return CliRunner().invoke(main, words)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names of our side after it ran from top to bottom, in the directory that it wrote into."""
    directory = tmp_path_factory.mktemp("page")
    names = {"__name__": "snippet", "directory": directory}
    with contextlib.chdir(directory), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # first weights
        for source in padded_snippets(PATH):
            exec(compile(source, str(PATH), "exec"), names)
    return names


# --- our side -----------------------------------------------------------------------------------------------------


def test_training_leaves_the_model_as_it_is_and_an_epoch_is_a_pass(page):
    state, start = page["result"].state, page["training"].init()
    assert_trees_equal(dict(page["model"].named_parameters()), start.params)
    assert not torch.equal(state.params["readout.0.weight"], start.params["readout.0.weight"])
    assert copy.deepcopy(page["model"]).load_state_dict({**state.params, **state.buffers}) == ([], [])
    assert int(state.counters.batch_count) == 2 * len(page["train_loader"]) == 10
    assert [record["epoch_count"] for record in page["result"].history if "validation/loss/total" in record] == [1, 2]


def test_a_teacher_is_constant_and_its_student_learns_from_it(page):
    before, after = page["distilling"].init().params, page["distilled"].state.params
    assert_trees_equal(after["teacher"], before["teacher"])
    assert not torch.equal(after["student"]["readout.0.weight"], before["student"]["readout.0.weight"])
    assert not any("teacher" in path for path in ps.tree.paths(page["distilled"].state.opt_state))


def test_the_five_counts_have_the_names_of_the_page():
    section = PAGE[PAGE.index("## Counters") : PAGE.index("## Hooks")]
    assert [field.name for field in dataclasses.fields(ps.Counters) if field.name not in section] == []


def test_the_table_of_stages_says_who_acts_where():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ([a-z ]+) \|", PAGE, re.MULTILINE))
    heard = {stage.name: "listener" for stage in ps.Stage}
    inside = {stage.name: "hook" for stage in MAY_REPLACE} | {stage.name: "chain" for stage in OWNED_BY_CHAIN}
    assert list(rows) == [stage.name for stage in ps.Stage]
    assert rows == heard | inside | {"AFTER_BATCH": "hook and listener"}


def test_a_listener_hears_each_batch_and_a_hook_reports_a_metric(page):
    batch = page["train_loader"].batch(0, 0)
    _, metrics = page["looking"].step(page["looking"].init(), batch)
    assert page["seen"] == [(0, 1), (0, 2)]
    assert metrics["largest_force"] == batch.forces.abs().max()


def test_weights_are_divided_by_their_sum_unless_told_otherwise(page):
    _, metrics = page["training"].step(page["training"].init(), page["train_loader"].batch(0, 0))
    assert float(metrics["loss/ForceMSELoss/weight"]) == 10 / 11
    assert [float(page["terms"][f"loss/{name}/weight"]) for name in ("EnergyHuberLoss", "ForceMSELoss")] == [1.0, 1.0]
    assert [float(page["loss"].terms[1].weight(step, 0)) for step in (0, 50, 100)] == [1.0, 5.0, 9.0]


def test_the_plateau_hears_the_validation_and_not_the_final_pass(page):
    heard = page["lowered"].state.opt_state["reduce_on_plateau"]
    totals = [record["validation/loss/total"] for record in page["lowered"].history if "validation/loss/total" in record]
    assert [float(heard.best_value)] == totals
    training, final = page["training"].replace(optimizer=page["plateau"]), ps.Validation(page["val_loader"])
    short = ps.fit(training, page["train_loader"], num_batches=1, validation=final)
    assert short.state.opt_state["reduce_on_plateau"].best_value == float("inf")


def test_groups_have_rates_of_their_own_and_the_cosine_ends_at_zero(page):
    params = page["training"].init().params
    updates, _ = page["by_layer"].update(ps.tree.map(torch.ones_like, params), page["by_layer"].init(params), params)
    # the decay of 1e-4 moves the first update of Adam by less than 1e-3 of itself
    assert float(updates["embedding.weight"][0, 0]) == pytest.approx(-1e-4, rel=1e-3)
    assert float(updates["readout.0.weight"][0, 0]) == pytest.approx(-1e-3, rel=1e-3)
    assert float(ps.schedules.cosine_decay(1e-3, 100)(100)) == 0.0


def test_one_epoch_of_five_batches_in_windows_of_four_is_two_updates(page):
    counters = page["windowed"].state.counters
    assert (int(counters.epoch_count), int(counters.batch_count), int(counters.step_count)) == (1, 5, 2)


def test_the_loss_scale_is_a_leaf_of_the_state(page):
    assert "opt_state.dynamic_loss_scale.scale" in ps.tree.paths(page["scaled"])
    assert float(page["scale"]) in (2.0**16, 2.0**15)  # kept, or halved by a first overflow


def test_validation_takes_the_average_and_a_checkpoint_does_not_lose_it_silently(page, tmp_path):
    state, training = page["averaged"].state, page["training"]
    assert page["averaged"].history[-1]["validation/ema"] == 1.0
    assert not torch.equal(page["params"]["readout.0.weight"], state.params["readout.0.weight"])
    ps.save(tmp_path / "averaged", state)
    with pytest.raises(StructureMismatchError):
        ps.load(tmp_path / "averaged", like=training.init())
    (pattern,) = re.findall(r'allow_extra=\["(.*?)"\]', PAGE)
    assert_trees_equal(ps.load(tmp_path / "averaged", like=training.init(), allow_extra=[pattern]).params, state.params)


def test_a_validation_is_that_of_the_whole_data_and_is_not_made_twice(page):
    history = [record for record in page["validated"].history if "validation/loss/total" in record]
    assert [record["step_count"] for record in history] == [2, 4]  # the run ends there
    assert [record["validation/loss/total"] for record in history] == page["totals"]
    assert len(page["kept"]) == 2 * len(page["val_loader"])
    assert page["validated"].history[-1]["validation/forces/mae_ev_per_angstrom"] > 0
    other = dataclasses.replace(page["validation"], data=page["loader"](range(3, 160, 8), batch_size=3), batch_callback=None)
    # float32 sums in another order
    assert validate(page["training"], page["validated"].state, other)["loss/total"] == pytest.approx(page["totals"][-1], rel=1e-5)


def test_the_resumed_run_is_bitwise_the_uninterrupted_one(page):
    whole = ps.fit(page["training"], page["train_loader"], num_epochs=3)
    assert_trees_equal(page["resumed"].state, whole.state)


def test_fine_tuning_starts_at_the_weights_and_moves_what_is_trainable(page):
    moved = {name for name, leaf in page["tuned"].state.params.items() if not torch.equal(leaf, page["start"].params[name])}
    assert moved and all(name.startswith("readout.") for name in moved)
    assert (page["report"].kept, page["report"].unused, int(page["start"].counters.step_count)) == ((), (), 0)


def test_balanced_batches_hold_a_frame_of_each_store(page):
    chosen = [page["mixed"].indices(0, number)[0].tolist() for number in range(len(page["mixed"]))]
    assert [sorted(index // 2 for index in batch) for batch in chosen] == [[0, 1], [0, 1]]
    assert page["mixed"].batch(0, 0).num_graphs == 2


def test_a_world_of_one_is_the_plain_run(page):
    plain = ps.fit(page["training"], page["train_loader"], num_batches=2)
    assert_trees_equal(page["together"].state, plain.state)


def test_the_log_has_the_keys_of_the_page(page):
    wanted = {"loss/total", "loss/EnergyMSELoss/unweighted", "optimizer/adamw/lr"}
    assert [line["batch"] for line in page["lines"] if line["kind"] == "train"] == [1, 2]
    assert wanted <= page["lines"][0].keys()


def test_a_recipe_makes_the_model_again_and_the_seed_the_state(page):
    again = from_spec(page["recipe"], "model")
    assert (type(again), again.hidden_size, again.cutoff) == (ps.models.PaiNN, 8, 3.0)
    assert_trees_equal(page["again"], page["training"].init(seed=0))


def test_every_name_of_ours_in_the_text_exists():
    names = sorted(set(re.findall(r"\bps\.([A-Za-z_.]*[A-Za-z])", PAGE)))
    for name in names:
        operator.attrgetter(name)(ps)
    assert len(names) > 40


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_program_takes_the_words_of_a_command(words):
    assert run(*words, "--help").exit_code == 0


def test_the_commands_run_from_top_to_bottom(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        shutil.copytree(STORE, f"data/{name}.zarr")
    Path("model.json").write_text(blocks("json")[0])
    *lines, train, resume, distributed = commands()
    short = ["--set", "dataset.split=test", "--set", "strategy.model_specs.main.cutoff=2.0", "--set", "runtime.device=cpu"]
    lines += [[*train, "--max-steps", "1", "--progress", "none", *short], [*resume, "--set", "strategy.num_steps=2", "--progress", "none"]]
    done = [run(*words) for words in lines]
    assert [(one.exit_code, one.output) for one in done if one.exit_code] == []
    assert distributed == [*train, "--distributed"]
    assert read_spec("both.json").dataset.paths == ("data/a.zarr", "data/b.zarr")
    assert read_spec("merged.json").strategy.num_steps == 5000
    assert read_spec("runs/my-model/spec.json").strategy.num_steps == 2
    assert [one.manifest.label for one in list_checkpoints("runs/my-model/checkpoints")] == [1, 2]


def test_the_document_of_the_toolkit_is_the_run_that_its_upgrade_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old.json").write_text(blocks("json")[1])
    done = run("spec", "upgrade", "old.json", "--out", "new.json")
    assert done.exit_code == 0, done.output
    spec = check_text(blocks("json")[1]).spec
    assert read_spec("new.json") == read_spec("old.json")
    assert (spec.dataset.cutoff, spec.output.checkpoints.every_n_steps, spec.strategy.normalize_weights) == (3.0, 500, False)
    assert [part.kind for part in spec.strategy.update] == ["adamw"]
    assert "NeighborListHook: dataset.cutoff" in done.output


# --- their side ---------------------------------------------------------------------------------------------------


def test_their_side_is_python():
    assert len([ast.parse(source) for source in blocks("py")]) == 10


@pytest.mark.filterwarnings("ignore")
def test_their_side_runs_from_top_to_bottom_where_the_toolkit_is_installed(tmp_path, monkeypatch):
    demo = pytest.importorskip("nvalchemi.models.demo", reason="the ALCHEMI toolkit is not installed")
    from nvalchemi.data import AtomicData, Batch

    monkeypatch.chdir(tmp_path)
    water = {"positions": torch.rand(3, 3), "atomic_numbers": torch.tensor([8, 1, 1])}
    labels = {"energy": torch.zeros(1, 1), "forces": torch.zeros(3, 3)}
    batch = Batch.from_data_list([AtomicData(**water, **labels)] * 2)
    names = {"__name__": "snippet", "train_loader": [batch.clone() for _ in range(3)], "val_loader": [batch]}
    names |= {name: demo.DemoModelWrapper(demo.DemoModel(hidden_dim=8)) for name in ("model", "teacher")}
    for source in blocks("py"):
        exec(source, names)
    assert (names["strategy"].epoch_count, names["tuning"].step_count) == (3, 2)
