"""`spec resume` of a run that is to become longer."""

from pathlib import Path

import pytest

from purestep.reporting import read_metrics
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

LONGER = ["spec", "resume", "run", "--progress", "none", "--no-report", "--set", "strategy.num_steps=4"]
STRETCHED = ["--set", "strategy.schedule.decay_steps=4", "--allow-change", "strategy.schedule"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("more", "warns"), [([], True), (STRETCHED, False)])
def test_a_schedule_that_ends_before_the_longer_run_is_warned_of_until_it_is_stretched(more, warns):
    cosine = {"kind": "cosine_decay", "init_value": 0.01, "decay_steps": 1}
    small = {"strategy/num_steps": 1, "strategy/schedule": cosine, "dataset/validation_split": None, "validation": None}
    Path("spec.json").write_text(text_of(changed(**small)))
    assert purestep("spec", "run", "spec.json", "--progress", "none", "--no-report").exit_code == 0
    done = purestep(*LONGER, *more)
    assert done.exit_code == 0, done.output
    assert ("warning PS316 /strategy/schedule/decay_steps: the learning rate is 0 from update 1" in done.stderr) == warns
    (rate,) = {name for name in read_metrics("run/metrics.jsonl")[-1] if name.endswith("/lr")}
    assert (read_metrics("run/metrics.jsonl")[-1][rate] == 0.0) == warns
