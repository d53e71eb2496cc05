"""A run that a signal ends: with a checkpoint it is worth going on, without one it is as if nothing had been."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

STOPPED = """import os, signal
from purestep.models import PaiNN
class {name}(PaiNN):
    def forward(self, batch):
        os.kill(os.getpid(), signal.{name})
        return super().forward(batch)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("stopped", None)


@pytest.mark.parametrize(
    ("name", "checkpoints", "code"),
    [("SIGTERM", None, 143), ("SIGINT", None, 130), ("SIGTERM", {}, 75), ("SIGINT", {}, 75), ("SIGUSR1", {}, 75)],
)
def test_the_exit_code_says_which_signal_it_was_or_that_the_run_can_go_on(name, checkpoints, code):
    Path("stopped.py").write_text(STOPPED.format(name=name))
    values = {"strategy/model_specs/main/cls_path": f"stopped.{name}", "output/checkpoints": checkpoints}
    Path("spec.json").write_text(text_of(changed(**values, **{"strategy/num_steps": 9})))
    done = purestep("spec", "run", "spec.json", "--trust", "stopped", "--progress", "none", "--no-report")
    status = json.loads(Path("run/status.json").read_text())
    assert (done.exit_code, done.stdout) == (code, "")
    assert (status["status"], status["exit_code"], status["reason"], status["batch_count"]) == ("interrupted", code, name, 1)
    assert ("resume: purestep spec resume" in done.stderr) == (code == 75)
