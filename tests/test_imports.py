"""What a process does not import before it needs it, statement by statement in one process."""

import subprocess
import sys

_WEB = ["starlette", "uvicorn", "sse_starlette"]  # not installed: a host serves without them
_STATEMENTS = {
    "from looopy.tools import tool; import looopy.tools.call.run": ["pydantic", "jsonschema_rs"],
    "from looopy.testing import ScriptedProvider, failure, text, tool_call": [
        *("pytest", "hypothesis", "openai", "pydantic", "sqlalchemy")
    ],
    "import looopy; looopy.Agent; import looopy.auth.sealing": ["joserfc"],
    "from looopy.server import AgentHost": [],
    "from looopy.llm import OpenAIProvider; model = OpenAIProvider('gpt-5', api_key='k')": [
        "genai_prices"
    ],
}
_CODE = f"""
import asyncio, sys
sys.modules.update(dict.fromkeys({_WEB}))
for statement, heavy in {_STATEMENTS}.items():
    exec(statement)
    assert not sys.modules.keys() & set(heavy), statement
asyncio.run(model.prepare())
assert "genai_prices" in sys.modules
assert model.window_tokens == 400_000
"""


def test_a_statement_imports_no_package_that_it_does_not_need():
    """A tool, a scripted model, an agent, a host and a provider; prices come with the first use."""
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
