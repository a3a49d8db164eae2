"""What was traced and built, for tests that say how often."""

import pytest

from leporello.call import plan_cache
from leporello.engine.cpu import runner


@pytest.fixture
def made(monkeypatch):
    """What was traced and built since the list was cleared."""
    made: list[str] = []
    trace, build = plan_cache.trace, runner.c_source_of

    def tracing(*args, **options):
        made.append("trace")
        return trace(*args, **options)

    def building(*args, **options):
        made.append("kernel")
        return build(*args, **options)

    monkeypatch.setattr(plan_cache, "trace", tracing)
    monkeypatch.setattr(runner, "c_source_of", building)
    return made
