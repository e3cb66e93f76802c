"""Names of models, and the model that is taken when none is named."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from looopy.errors import MissingExtra, MissingKey, UnknownModel, how_to_install
from looopy.llm.provider import LLMProvider
from looopy.llm.resolve import FORMS, pick_default, resolve_provider
from looopy.testing import ScriptedProvider, text

NOBODY = {"OLLAMA_HOST": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    """Whoever runs the tests may have keys; the tests have none."""
    names = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY", "OLLAMA_HOST"]
    for name in (*names, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    """A server of models; `pages` says what it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(self.path)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.answer(f"{self.path}:{body['model']}")

        def answer(self, path):
            self.server.asked.append((path, self.headers.get("authorization")))
            page = self.server.pages.get(path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(page).encode())

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.pages, server.asked = {}, []
    server.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_provider_is_returned_as_it_is():
    """Anything that streams will do."""
    provider = ScriptedProvider([text("hi")])
    assert resolve_provider(provider) is provider


def test_openai_takes_its_key_from_the_environment(monkeypatch):
    """`openai/MODEL`."""
    with pytest.raises(MissingKey, match="OPENAI_API_KEY"):
        resolve_provider("openai/gpt-5-mini")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    provider = resolve_provider("openai/gpt-5-mini")
    assert isinstance(provider, LLMProvider)
    assert (provider.name, provider.model, provider.base_url) == ("openai", "gpt-5-mini", None)


def test_anthropic_takes_its_key_from_the_environment(monkeypatch):
    """`anthropic/MODEL`; a key that comes with each call, or a server of one's own, will do."""
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        resolve_provider("anthropic/claude-sonnet-5-5")
    assert resolve_provider("anthropic/claude-sonnet-5-5", api_key="").model == "claude-sonnet-5-5"
    assert resolve_provider("anthropic/m", base_url="http://127.0.0.1:9").window_tokens is None
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    provider = resolve_provider("anthropic/claude-sonnet-5-5")
    assert isinstance(provider, LLMProvider)
    assert (provider.name, provider.window_tokens) == ("anthropic", 1_000_000)
    assert "claude-sonnet-5-5" in repr(provider)
    with pytest.raises(UnknownModel, match="anthropic/claude"):
        resolve_provider("anthropic/")


def test_openrouter_has_its_own_key(monkeypatch):
    """`openrouter/VENDOR/MODEL`; OpenAI's key does not do."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(MissingKey, match="OPENROUTER_API_KEY"):
        resolve_provider("openrouter/vendor/model")
    provider = resolve_provider("openrouter/vendor/model", api_key="k")
    assert (provider.name, provider.model) == ("openrouter", "vendor/model")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),  # noqa: S104 - where it listens
        ("gpu:99", "http://gpu:99/v1"),
        (":99", "http://127.0.0.1:99/v1"),
        ("https://gpu.example/", "https://gpu.example:443/v1"),
        ("[::1]:99", "http://[::1]:99/v1"),
    ],
)
def test_ollama_is_where_its_variable_says(monkeypatch, host, expected):
    """As Ollama reads OLLAMA_HOST; where it listens on all addresses, this machine is meant."""
    monkeypatch.setenv("OLLAMA_HOST", host)
    provider = resolve_provider("ollama/llama3.2:3b")
    assert (provider.base_url, provider.model) == (expected, "llama3.2:3b")


def test_any_server_is_named_by_its_url():
    """The model follows the '#'; no key is needed."""
    provider = resolve_provider("http://127.0.0.1:9/v1/#some/model")
    assert (provider.base_url, provider.model) == ("http://127.0.0.1:9/v1", "some/model")
    with pytest.raises(UnknownModel, match=r"http://host/v1#MODEL") as caught:
        resolve_provider("http://user:secret@host/v1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("gpt-5-mini", "'openai/gpt-5-mini'"),
        ("o4-mini", "'openai/o4-mini'"),
        ("opnai/gpt-5", "'openai/gpt-5'"),
        ("llama3.2:3b", "'ollama/llama3.2:3b'"),
        ("qwen3", "'ollama/qwen3'"),
        ("ollama", "'ollama/MODEL'"),
        ("locl", "'local'"),
        ("weights.gguf", "'local/weights.gguf'"),
        ("claude-sonnet-4-5", "'anthropic/claude-sonnet-4-5'"),
        ("anthropc/claude-sonnet-4-5", "'anthropic/claude-sonnet-4-5'"),
        ("acme/thing", FORMS[0]),
        ("openai/", FORMS[0]),
        ("", FORMS[0]),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_name(spec, advice):
    """At once, with a form that works."""
    with pytest.raises(UnknownModel) as caught:
        resolve_provider(spec)
    assert advice in str(caught.value)


@pytest.mark.parametrize("thing", [3, None, ScriptedProvider, object()])
def test_an_object_without_stream_is_refused(thing):
    """A class is not its instance."""
    with pytest.raises(UnknownModel, match="stream"):
        resolve_provider(thing)


def test_a_missing_sdk_names_the_command(monkeypatch):
    """The extra is missed when the provider is made, not within a turn."""
    monkeypatch.setattr("looopy.llm.sdk.find_spec", lambda _: None)
    for model, extra in (
        ("ollama/llama3.2", "openai"),
        ("anthropic/claude-sonnet-5-5", "anthropic"),
    ):
        with pytest.raises(MissingExtra) as missing:
            resolve_provider(model)
        assert missing.value.extras == (extra,)
        assert str(missing.value).endswith(f": {how_to_install(extra)}")


@pytest.mark.parametrize(
    ("env", "expected", "why"),
    [
        ({"LOOOPY_MODEL": "x/y", "OPENAI_API_KEY": "k"}, "x/y", "LOOOPY_MODEL"),
        ({"OPENAI_API_KEY": "k"}, "openai/gpt-5-mini", "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}, "openai/m", "OPENAI_API_KEY"),
        (
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_MODEL": "m"},
            "openai/m",
            "OPENAI_BASE_URL",
        ),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": "m"}, "anthropic/m", "ANTHROPIC_API_KEY"),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic/claude-sonnet-5-5", "ANTHROPIC_API_KEY"),
        ({"OPENROUTER_API_KEY": "k", "OPENROUTER_MODEL": "a/b"}, "openrouter/a/b", "OPENROUTER"),
        ({"OPENROUTER_API_KEY": "k"}, "local", "embedded"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "local", "embedded"),
        ({}, "local", "embedded"),
    ],
)
def test_a_model_of_the_users_own_is_preferred(env, expected, why):
    """In the order of how plainly the environment names it; the reason is one sentence."""
    spec, reason = pick_default({**NOBODY, **env})
    assert spec == expected
    assert why in reason
    assert reason.endswith(".")


def test_a_server_is_asked_for_its_first_model(server):
    """With the key, where there is one; the URL alone names no model."""
    server.pages["/v1/models"] = {"data": [{"id": "first"}, {"id": "second"}]}
    env = {"OPENAI_BASE_URL": f"http://{server.host}/v1", "OPENAI_API_KEY": "k", **NOBODY}
    assert pick_default(env)[0] == "openai/first"
    assert server.asked == [("/v1/models", "Bearer k")]


def test_a_running_ollama_gives_a_model_that_takes_tools(server):
    """The first with tools; models that only embed are no choice."""
    env = {"OLLAMA_HOST": server.host}
    server.pages["/api/tags"] = {"models": [{"name": n} for n in ("embed", "chat", "tools")]}
    server.pages["/api/show:embed"] = {"capabilities": ["embedding"]}
    server.pages["/api/show:chat"] = {"capabilities": ["completion"]}
    assert pick_default(env)[0] == "ollama/chat"
    server.pages["/api/show:tools"] = {"capabilities": ["completion", "tools"]}
    spec, reason = pick_default(env)
    assert (spec, "Ollama" in reason) == ("ollama/tools", True)


@pytest.mark.parametrize("page", [None, [], {"models": None}, {"models": [3, {"name": ""}]}])
def test_an_odd_answer_of_ollama_is_no_model(server, page):
    """Something else may listen there."""
    server.pages["/api/tags"] = page
    assert pick_default({"OLLAMA_HOST": server.host})[0] == "local"
