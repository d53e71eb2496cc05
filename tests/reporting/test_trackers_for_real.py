"""Runs that write to the trackers themselves, where these are installed: what they wrote is read back, nothing was asked, nobody called."""

import importlib.util
import json
import os
import pty
import socket
import subprocess
import sys

import pytest

from purestep.reporting import read_metrics
from tests.spec.examples import changed, text_of

SINKS = {
    "wandb": {"kind": "wandb", "project": "molecules"},
    "mlflow": {"kind": "mlflow", "tracking_uri": "sqlite:///mlflow.db", "experiment": "molecules"},
    "trackio": {"kind": "trackio", "project": "molecules"},
}
ASKS_NEVER_SECONDS = 120  # a question waits for an answer longer than that

HIDDEN = ("WANDB", "MLFLOW", "TRACKIO", "PYTEST", "CI")  # variables by which a library would behave differently here
CALL = """
import contextlib, urllib.request
with contextlib.suppress(OSError):
    urllib.request.urlopen("http://nobody.invalid", timeout=1)
"""


class Here:
    """A directory in which commands run that have a terminal to ask, and no way out but a proxy that notes who calls."""

    def __init__(self, path, proxy):
        self.path, self.proxy = path, proxy
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            self.environment |= {name: address, name.upper(): address}
        self.environment |= {"HOME": str(path), "TRACKIO_DIR": str(path / "trackio"), "PYTHONPATH": os.getcwd()}
        self.environment |= {"no_proxy": "", "NO_PROXY": ""}

    def python(self, *words):
        """Standard output of a program that ends well."""
        master, slave = pty.openpty()
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.path,
            env=self.environment,
            stdin=slave,
            capture_output=True,
            text=True,
            timeout=ASKS_NEVER_SECONDS,
            check=False,
        )
        os.close(master)
        os.close(slave)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def called(self):
        """Whether anybody has called the proxy."""
        try:
            self.proxy.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def here(tmp_path):
    with socket.create_server(("127.0.0.1", 0), backlog=50) as proxy:
        proxy.setblocking(False)
        yield Here(tmp_path, proxy)


def wandb_rows(path, kind):
    """The rows of all off-line files: each a log in blocks of 32 KiB, of records that may be cut at their ends."""
    from wandb.proto import wandb_internal_pb2

    for file in sorted(path.glob("run/wandb/offline-run-*/*.wandb")):
        data, place, record = file.read_bytes(), 7, b""
        while place < len(data):
            if (left := 32768 - place % 32768) < 7:
                place += left
                continue
            size, piece = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
            record += data[place + 7 : place + 7 + size]
            place += 7 + size
            if piece in (1, 4):  # whole, or the last piece
                found = wandb_internal_pb2.Record.FromString(record)
                record = b""
                if found.WhichOneof("record_type") == kind:
                    yield getattr(found, kind)


def read_wandb(path):
    assert {run.run_id for run in wandb_rows(path, "run")} == {next(wandb_rows(path, "run")).run_id}  # one run, however often it begins
    rows = [{"/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in wandb_rows(path, "history")]
    return {int(row["batch"]): row["loss/total"] for row in rows if "loss/total" in row}


def read_mlflow(path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("molecules").experiment_id])
    assert run.info.status == "FINISHED"
    return {point.step: point.value for point in client.get_metric_history(run.info.run_id, "loss/total")}


def read_trackio(path):
    """With the library's own reader, which takes its directory from the environment."""
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_runs("molecules")
    return {row["step"]: row["loss/total"] for row in SQLiteStorage.get_logs("molecules", run) if "loss/total" in row}


READERS = {"wandb": read_wandb, "mlflow": read_mlflow, "trackio": read_trackio}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the libraries warn of when they are loaded is theirs
@pytest.mark.parametrize("name", SINKS)
def test_a_run_and_its_resume_are_written_off_line_and_read_back(here, monkeypatch, name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'purestep[reporters]'")
    for variable in ("TRACKIO_DIR", "HOME"):
        monkeypatch.setenv(variable, here.environment[variable])
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # of the reader
    (here.path / "spec.json").write_text(text_of(changed(**{"output/sinks": [SINKS[name]], "validation/every_n_epochs": 100})))
    told = here.python("-m", "purestep", "spec", "run", "spec.json", "--progress", "none", "--no-report")
    json.loads(told)  # the document of the run, and nothing beside it
    here.python("-m", "purestep", "spec", "resume", "run", "--set", "strategy.num_steps=5", "--progress", "none", "--no-report")
    assert not here.called()
    logged = {line["batch"]: line["loss/total"] for line in read_metrics(here.path / "run/metrics.jsonl") if line["kind"] == "train"}
    assert READERS[name](here.path) == logged
    assert list(logged) == [1, 2, 3, 4, 5]


def test_a_program_that_calls_somebody_is_noticed(here):
    here.python(
        "-c", "import urllib.request as r, contextlib\nwith contextlib.suppress(OSError): r.urlopen('http://nobody.invalid', timeout=1)"
    )
    assert here.called()
    assert not here.called()
