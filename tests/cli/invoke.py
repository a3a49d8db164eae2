"""Run the command in this process, and read what it said."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from leporello.cli.app import app


def leporello(*words: object, read: str | None = None) -> Result:
    """The result of `leporello WORDS`; an error that is not said in words fails the test.

    read   standard input
    """
    result = CliRunner().invoke(app, [str(word) for word in words], input=read, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def drawn(*words: object) -> str:
    """What a command that succeeds prints."""
    result = leporello(*words)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refused(*words: object) -> str:
    """What a command that fails says; it prints nothing else."""
    result = leporello(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr
