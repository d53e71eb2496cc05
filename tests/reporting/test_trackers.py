"""Writers for trackers. TensorBoard's files are read back with its own reader; the other libraries are stood in for by recorders whose
functions have the signatures of wandb 0.31.0, mlflow 3.17.2 and trackio 0.43.0."""

import os
import subprocess
import sys
import types

import pytest
import torch

import purestep as ps
from purestep.core.hook import Stage
from purestep.loop import fit
from purestep.reporting.mlflow import MlflowWriter
from purestep.reporting.tensorboard import TensorBoardWriter
from purestep.reporting.trackers import TrackerWriter, unless_said
from purestep.reporting.trackio import TrackioWriter
from purestep.reporting.wandb import WandbWriter

from .events import PowerCut, cut_power, event, keep_states


class Recording(TrackerWriter):
    """A tracker in memory."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rows, self.begun, self.ended = [], [], []

    def begin(self, event):
        self.begun.append(event.batch_count)

    def write(self, values, batch):
        self.rows.append((batch, dict(values)))

    def end(self, *, failed):
        self.ended.append(failed)


# --- what they share ----------------------------------------------------------------------------------------------


def test_a_tracker_gets_the_records_with_the_keys_of_the_guide(training, batches, validation):
    writer = Recording(every_n_batches=5)
    fit(training, batches, num_epochs=1, validation=validation, listeners=[writer])
    assert [batch for batch, _ in writer.rows] == [5, 10, 10]
    train, validated = writer.rows[1][1], writer.rows[2][1]
    wanted = {"loss/total", "loss/MSELoss/unweighted", "loss/MSELoss/weight", "optimizer/adam/lr", "update/grad_norm"}
    assert wanted | {"training/steps_per_s", "training/step", "training/epoch", "training/progress_fraction"} <= train.keys()
    assert {"validation/loss/total", "validation/loss/MSELoss/unweighted"} <= validated.keys()
    assert {"training/target_epochs": 1.0, "training/epoch_fraction": 0.0}.items() <= train.items()
    for values, prefix in ((train, ""), (validated, "validation/")):
        share = values[f"{prefix}loss/MSELoss/unweighted"] * values[f"{prefix}loss/MSELoss/weight"]
        assert values[f"{prefix}loss/MSELoss/total"] == share == values[f"{prefix}loss/total"]  # the only term
    assert (writer.begun, writer.ended) == ([0], [False])


def test_a_run_of_updates_says_how_many_there_are_and_how_many_remain(training, batches):
    writer = Recording(every_n_batches=5)
    fit(training, batches, num_steps=12, listeners=[writer])
    names = ("training/target_steps", "training/remaining_steps", "training/progress_fraction")
    assert [tuple(row[name] for name in names) for _, row in writer.rows] == [(12.0, 7.0, 5 / 12), (12.0, 2.0, 10 / 12)]


def test_metrics_that_are_not_finite_reach_no_tracker():
    writer = Recording(every_n_batches=1)
    writer(event(metrics={"loss/total": torch.tensor(float("nan")), "update/grad_norm": torch.tensor(1.0)}))
    assert "loss/total" not in writer.rows[0][1] and writer.rows[0][1]["update/grad_norm"] == 1.0


def test_metrics_are_read_once_a_report():
    class Untouchable(dict):
        def items(self):
            raise AssertionError("read")

    writer = Recording(every_n_batches=10)
    for number in range(1, 10):
        writer(event(batch=number, metrics=Untouchable(loss=torch.ones(()))))


def test_a_tracker_that_fails_is_left_alone_with_one_warning_and_training_goes_on(training, batches):
    class Broken(Recording):
        def write(self, values, batch):
            raise ConnectionError("no route")

    with pytest.warns(RuntimeWarning, match="listener Broken failed at AFTER_BATCH of batch 1, .*ConnectionError: no route") as caught:
        state = fit(training, batches, num_epochs=1, listeners=[Broken(every_n_batches=1)]).state
    assert len(caught) == 1
    assert int(state.counters.step_count) == 10


def test_a_tracker_that_cannot_be_ended_takes_nothing_from_a_run_that_is_whole(training, batches):
    class Gone(Recording):
        def write(self, values, batch):
            raise ConnectionError("no route")

        def end(self, *, failed):
            raise ConnectionError("still no route")

    with pytest.warns(RuntimeWarning) as caught, Gone() as tracker:
        result = fit(training, batches, num_epochs=1, listeners=[tracker])
    assert result.stop_reason == "num_epochs"
    assert "Gone could not end: still no route" in str(caught.list[-1].message)


def test_a_context_ends_the_tracking_of_a_run_that_failed(training, batches):
    with pytest.raises(PowerCut), Recording(every_n_batches=1) as writer:
        fit(training, batches, num_epochs=1, listeners=[writer, cut_power(after=3)])
    assert writer.ended == [True]


def test_no_library_is_loaded_before_its_writer_is_made():
    code = "import purestep.reporting, sys; print([name for name in ('tensorboard', 'wandb', 'mlflow', 'trackio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("wandb", lambda: WandbWriter("project")),
        ("mlflow", lambda: MlflowWriter("sqlite:///mlflow.db", "experiment")),
        ("trackio", lambda: TrackioWriter("project")),
        ("tensorboard", lambda: TensorBoardWriter("tb")),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, name, make):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match=rf"{name} is not installed; pip install 'purestep\[{name}\]'"):
        make()


# --- TensorBoard --------------------------------------------------------------------------------------------------


def read_events(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def test_tensorboard_reads_what_was_written(tmp_path, training, batches, validation):
    history = fit(
        training, batches, num_epochs=2, validation=validation, listeners=[TensorBoardWriter(tmp_path, every_n_batches=10)]
    ).history
    found = read_events(tmp_path)
    validated = [record["validation/loss/total"] for record in history if "validation/loss/total" in record]
    scalars = found.Scalars("validation/loss/total")
    assert [point.step for point in scalars] == [10, 20]
    assert [point.value for point in scalars] == pytest.approx(validated, rel=1e-6)  # it keeps float32
    assert {"loss/total", "loss/MSELoss/unweighted", "optimizer/adam/lr", "training/step"} <= set(found.Tags()["scalars"])
    assert found.Tags()["histograms"] == []


def test_histograms_are_written_of_the_leaves_that_were_asked_for(tmp_path, training, batches):
    writer = TensorBoardWriter(tmp_path, histograms=["params.*"], histograms_every_n_batches=5)
    state = fit(training, batches, num_epochs=1, listeners=[writer]).state
    found = read_events(tmp_path)
    assert found.Tags()["histograms"] == ["params.bias", "params.weight"]
    first, last = found.Histograms("params.weight")
    assert (first.step, last.step) == (5, 10)
    # it keeps float32 values as doubles
    assert last.histogram_value.sum == pytest.approx(float(state.params["weight"].sum()), rel=1e-6)
    assert last.histogram_value.num == 3


def test_a_pattern_of_histograms_that_matches_nothing_is_an_error(tmp_path, training, batches):
    writer = TensorBoardWriter(tmp_path, histograms=["weights.*"])
    writer.on_error = "raise"
    with pytest.raises(ps.errors.PatternError, match=r"histogram pattern 'weights.\*'"):
        fit(training, batches, num_epochs=1, listeners=[writer])


def test_a_resumed_run_hides_what_it_makes_anew(tmp_path, training, batches):
    states = {}
    with pytest.raises(PowerCut):
        listeners = [TensorBoardWriter(tmp_path, every_n_batches=1), keep_states(states), cut_power(after=7)]
        fit(training, batches, num_epochs=1, listeners=listeners)
    fit(training, batches, state=states[4], num_epochs=1, listeners=[TensorBoardWriter(tmp_path, every_n_batches=1)])
    assert [point.step for point in read_events(tmp_path).Scalars("loss/total")] == list(range(1, 11))


# --- stand-ins with the signatures of the libraries ---------------------------------------------------------------


def stand_in(monkeypatch, name, **members):
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace(name=name)
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_wandb_is_called_as_its_signatures_say(monkeypatch, training, batches):
    calls = []

    class Run:
        def define_metric(self, name, step_metric=None, step_sync=None, hidden=None, summary=None, overwrite=None):
            calls.append(("define_metric", name, step_metric))

        def log(self, data, step=None, commit=None):
            calls.append(("log", data["batch"], step))

        def finish(self, exit_code=None):
            calls.append(("finish", exit_code))

    def init(
        entity=None,
        project=None,
        dir=None,
        id=None,
        name=None,
        notes=None,
        tags=None,
        config=None,
        config_exclude_keys=None,
        config_include_keys=None,
        allow_val_change=None,
        group=None,
        job_type=None,
        mode=None,
        force=None,
        reinit=None,
        resume=None,
        resume_from=None,
        fork_from=None,
        save_code=None,
        tensorboard=None,
        sync_tensorboard=None,
        monitor_gym=None,
        settings=None,
    ):
        calls.append(("init", project, id, mode, resume, config, settings))
        return Run()

    stand_in(monkeypatch, "wandb", init=init, Settings=lambda console="auto", silent=False: (console, silent))
    writer = WandbWriter("project", run_id="one", config={"lr": 0.1}, every_n_batches=5)
    fit(training, batches, num_epochs=1, listeners=[writer])
    assert calls == [
        ("init", "project", "one", "offline", "allow", {"lr": 0.1}, ("off", True)),
        ("define_metric", "batch", None),
        ("define_metric", "*", "batch"),
        ("log", 5, None),
        ("log", 10, None),
        ("finish", 0),
    ]


def test_wandb_never_gets_to_ask_for_a_key(monkeypatch):
    stand_in(monkeypatch, "wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ValueError, match="mode='online' needs a key in WANDB_API_KEY"):
        WandbWriter("project", mode="online")
    with pytest.raises(ValueError, match="mode must be one of offline, online, got 'auto'"):
        WandbWriter("project", mode="auto")


def test_trackio_is_called_as_its_signatures_say_and_prints_on_no_standard_output(monkeypatch, capsys, training, batches):
    calls = []

    class Run:
        def log(self, metrics, step=None):
            calls.append(("log", step, "loss/total" in metrics))

        def finish(self):
            print("bye")
            calls.append(("finish",))

    def init(
        project,
        name=None,
        group=None,
        space_id=None,
        server_url=None,
        dataset_id=None,
        bucket_id=None,
        config=None,
        resume="never",
        settings=None,
        private=None,
        embed=True,
        auto_log_gpu=None,
        gpu_log_interval=10.0,
        auto_log_cpu=None,
        cpu_log_interval=10.0,
        webhook_url=None,
        webhook_min_level=None,
    ):
        print("hello")
        calls.append(("init", project, name, space_id, server_url, resume, embed))
        return Run()

    module = stand_in(monkeypatch, "trackio", init=init, finish=Run().finish)
    fit(training, batches, num_epochs=1, listeners=[TrackioWriter("project", name="one", every_n_batches=10)])
    assert calls == [("init", "project", "one", None, None, "allow", False), ("log", 10, True), ("finish",)]
    assert capsys.readouterr() == ("", "hello\nbye\n")
    module.finish = missing  # no run is its current one any more
    fit(training, batches, num_epochs=1, listeners=[TrackioWriter("project", name="one", every_n_batches=10)])
    assert calls[-1] == ("finish",) and len(calls) == 6


def missing():
    raise RuntimeError("Call trackio.init() before trackio.finish().")


@pytest.mark.parametrize(("mode", "told"), [("offline", "false"), ("online", None)])
def test_wandb_reports_no_errors_of_its_own_while_it_is_off_line(monkeypatch, training, batches, mode, told):
    seen = []

    class Run:
        define_metric = log = finish = lambda self, *arguments, **options: None

    def init(**options):
        seen.append(os.environ.get("WANDB_ERROR_REPORTING"))
        return Run()

    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    stand_in(monkeypatch, "wandb", init=init, Settings=dict)
    fit(training, batches, num_epochs=1, listeners=[WandbWriter("project", mode=mode)])
    assert seen == [told] and "WANDB_ERROR_REPORTING" not in os.environ


def test_an_environment_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("MINE", "yes")
    monkeypatch.delenv("YOURS", raising=False)
    with pytest.raises(KeyError), unless_said(MINE="no", YOURS="no"):
        assert (os.environ["MINE"], os.environ["YOURS"]) == ("yes", "no")
        raise KeyError
    assert os.environ["MINE"] == "yes" and "YOURS" not in os.environ


class Client:
    """The calls of an `MlflowClient`."""

    def __init__(self, tracking_uri=None, registry_uri=None, workspace_store_uri=None):
        self.calls = CALLS
        self.calls.append(("client", tracking_uri))

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location=None, tags=None):
        self.calls.append(("create_experiment", name))
        return "7"

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        self.calls.append(("create_run", experiment_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        self.calls.append(("log_batch", run_id, [metric for metric in metrics if metric[0] == "loss/total"], list(params)))

    def set_terminated(self, run_id, status=None, end_time=None):
        self.calls.append(("set_terminated", run_id, status))


CALLS = []


@pytest.fixture
def mlflow(monkeypatch):
    CALLS.clear()
    stand_in(monkeypatch, "mlflow")
    stand_in(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    metric = lambda key, value, timestamp, step: (key, timestamp, step)  # noqa: E731
    stand_in(monkeypatch, "mlflow.entities", Metric=metric, Param=lambda key, value: (key, value))


def test_mlflow_is_called_as_its_signatures_say(mlflow, training, batches):
    writer = MlflowWriter("sqlite:///a.db", "exp", name="one", params={"lr": 0.1}, every_n_batches=10, clock=lambda: 5.0)
    fit(training, batches, num_epochs=1, listeners=[writer])
    assert CALLS == [
        ("client", "sqlite:///a.db"),
        ("create_experiment", "exp"),
        ("create_run", "7", "one"),
        ("log_batch", "abc", [], [("lr", "0.1")]),
        ("log_batch", "abc", [("loss/total", 5000, 10)], []),
        ("set_terminated", "abc", "FINISHED"),
    ]


def test_mlflow_goes_on_with_a_run_and_marks_one_that_failed(mlflow, training, batches):
    with pytest.raises(PowerCut), MlflowWriter("sqlite:///a.db", "exp", run_id="old", every_n_batches=10) as writer:
        fit(training, batches, num_epochs=1, listeners=[writer, cut_power(after=3)])
    assert CALLS == [("client", "sqlite:///a.db"), ("set_terminated", "old", "FAILED")]


def test_a_run_that_does_nothing_more_is_tracked_and_ended():
    writer = Recording(every_n_batches=1)
    writer(event(Stage.BEFORE_TRAINING, batch=0))
    writer(event(Stage.AFTER_TRAINING, batch=0))
    assert (writer.begun, writer.ended) == ([0], [False])
