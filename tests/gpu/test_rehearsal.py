"""The script of the CUDA checks, rehearsed on the CPU: every check runs, none fails."""

import pytest

from tests.gpu.__main__ import main
from tests.gpu.checks import CHECKS


@pytest.mark.filterwarnings("ignore")  # of the profiler and of process groups
def test_every_check_of_a_device_can_be_rehearsed_on_the_cpu(capsys):
    status = main(["--rehearse"])
    table = capsys.readouterr().out.splitlines()[1:]
    assert status == 0, table
    assert [line.split()[0] for line in table] == list(CHECKS)
    assert {line.split()[1] for line in table} == {"passed", "skipped"}


def test_checks_that_would_begin_too_late_are_said_to_have_not_run(capsys):
    assert main(["--rehearse", "--seconds", "-1"]) == 1
    assert all("NOT RUN" in line for line in capsys.readouterr().out.splitlines()[1:])
