"""The command line called from within the tests' own process."""

from click.testing import CliRunner, Result

from purestep.cli import main


def purestep(*words) -> Result:
    """What `purestep` followed by these words does: exit code, stdout, stderr."""
    return CliRunner().invoke(main, [str(word) for word in words])
