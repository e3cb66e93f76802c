"""What every test over a real socket starts from."""

import pytest


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    """Whoever runs the tests may have keys and servers; the tests have none."""
    names = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"]
    names += ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
