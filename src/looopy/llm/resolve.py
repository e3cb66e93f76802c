"""
A name becomes a provider: `"openai/gpt-5-mini"`, `"ollama/llama3.2"`, `"local"`, a URL.

The part before the first slash is the place of the model, the rest is its name there. An unknown
name fails at once, with a suggestion. `pick_default` is for the command line: it takes the best
model that the person has on the machine, and shows why.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from looopy.errors import UnknownModel
from looopy.llm.provider import LLMProvider, check_abilities

FORMS = (
    "openai/gpt-5-mini",
    "openai-responses/gpt-5-mini",
    "anthropic/claude-sonnet-5-5",
    "openrouter/vendor/model",
    "ollama/llama3.2",
    "local",
    "local/path/to/weights.gguf",
    "http://127.0.0.1:8000/v1#model",
)
"""One example of each form that `resolve_provider` takes."""

DEFAULT_OPENAI_MODEL = "gpt-5-mini"
DEFAULT_ANTHROPIC_MODEL = "claude-sonnet-5-5"
_OPENROUTER_URL = "https://openrouter.ai/api/v1"
_OLLAMA = "127.0.0.1:11434"
_PLACES = ("openai", "openai-responses", "anthropic", "openrouter", "ollama", "local")
_ANTHROPIC_NAME = re.compile(r"claude", re.IGNORECASE)
_OPENAI_NAME = re.compile(r"gpt|chatgpt|o\d", re.IGNORECASE)
_OLLAMA_NAME = re.compile(r"llama|qwen|mistral|gemma|phi|deepseek|[^/]+:[^/]+", re.IGNORECASE)
_OLLAMA_TIMEOUT_S = 0.3
_MODELS_TIMEOUT_S = 3.0
_MODELS_ASKED = 8
_MAX_LIST_BYTES = 4 * 1024 * 1024


def resolve_provider(spec: str | LLMProvider, **options: Any) -> LLMProvider:
    """
    The provider that *spec* names; a provider is returned as it is.

    Args:
        spec: A string of one of these forms, or anything with a `stream` method.

            - `openai/MODEL`: OpenAI, or the server at `OPENAI_BASE_URL`; key in `OPENAI_API_KEY`.
            - `openai-responses/MODEL`: the same, through OpenAI's Responses API.
            - `anthropic/MODEL`: Anthropic, or the server at `ANTHROPIC_BASE_URL`; key in
              `ANTHROPIC_API_KEY`.
            - `openrouter/VENDOR/MODEL`: key in `OPENROUTER_API_KEY`.
            - `any-llm/PROVIDER/MODEL`: any provider that any-llm knows.
            - `ollama/MODEL`: a running Ollama on this machine, or at `OLLAMA_HOST`.
            - `local`, `local/NAME`, `local/PATH.gguf`: the embedded model.
            - `http://HOST/v1#MODEL`: any server that speaks OpenAI's chat completions.
        **options: For the provider's constructor, such as `api_key`.

    Raises:
        ConfigurationError: A provider declares an ability wrongly; see `LLMProvider`.
        UnknownModel: *spec* has another form; the message suggests the one that was probably meant.
        MissingExtra: The provider's package is not installed.
        MissingKey: The provider needs a key.
    """
    if not isinstance(spec, str):
        if isinstance(spec, type) or not callable(getattr(spec, "stream", None)):
            raise UnknownModel(
                f"{spec!r} is not a model: give a name such as {FORMS[0]!r}, or an object that"
                " has stream()"
            )
        check_abilities(spec)
        return spec
    if re.match(r"https?://", spec, re.IGNORECASE):
        return _at_url(spec, options)
    place, _, model = spec.partition("/")
    if place == "anthropic" and model:
        from looopy.llm.anthropic.provider import AnthropicProvider

        return AnthropicProvider(model, **options)
    if place == "any-llm" and "/" in model:
        from looopy.llm.anyllm import AnyLLMProvider

        return AnyLLMProvider(model.replace("/", ":", 1), **options)
    if place == "local" and (model or spec == "local"):
        from looopy.llm.local import LocalProvider

        return cast("LLMProvider", LocalProvider(model or "default", **options))
    if not model or place not in _PLACES:
        raise UnknownModel(_advice(spec, place, model))
    from looopy.llm.openai.provider import OpenAIProvider

    if place == "ollama":
        url = f"{_ollama_url(os.environ)}/v1"
        options = {"base_url": url, "name": place, "api_key": "ollama"} | options
    elif place == "openrouter":
        url, variable = _OPENROUTER_URL, "OPENROUTER_API_KEY"
        options = {"base_url": url, "name": place, "key_variable": variable} | options
    elif place == "openai-responses":
        options = {"api": "responses"} | options
    return OpenAIProvider(model, **options)


def _at_url(spec: str, options: Mapping[str, Any]) -> LLMProvider:
    url, _, model = spec.partition("#")
    if not model or not urlsplit(url).hostname:
        raise UnknownModel(f"which model at {_shown(url)}? Add it after '#': {_shown(url)}#MODEL")
    from looopy.llm.openai.provider import OpenAIProvider

    return OpenAIProvider(model, **{"base_url": url.rstrip("/"), **options})


def _shown(url: str) -> str:
    """*url* without the credentials it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _advice(spec: str, place: str, model: str) -> str:
    known = ", ".join(FORMS)
    import difflib  # only a mistake needs it

    guess = ""
    if model:
        near = difflib.get_close_matches(place.lower(), _PLACES, n=1)
        guess = f"{near[0]}/{model}" if near else ""
    elif near := difflib.get_close_matches(place.lower(), _PLACES, n=1, cutoff=0.75):
        guess = near[0] if near[0] == "local" else f"{near[0]}/MODEL"
    elif _ANTHROPIC_NAME.match(spec):
        guess = f"anthropic/{spec}"
    elif _OPENAI_NAME.match(spec):
        guess = f"openai/{spec}"
    elif _OLLAMA_NAME.match(spec):
        guess = f"ollama/{spec}"
    elif spec.endswith(".gguf"):
        guess = f"local/{spec}"
    meant = f"; did you mean {guess!r}?" if guess else "."
    return f"no provider knows the model {spec!r}{meant} A model is named like: {known}"


def _ollama_url(env: Mapping[str, str]) -> str:
    """Where Ollama is. As for Ollama, `OLLAMA_HOST` may be a URL, HOST:PORT, HOST or :PORT."""
    given = env.get("OLLAMA_HOST", "").strip().rstrip("/") or _OLLAMA
    scheme, separator, rest = given.rpartition("://")
    parts = urlsplit(f"{scheme or 'http'}{separator or '://'}{rest}")
    host = parts.hostname or "127.0.0.1"
    if host in ("0.0.0.0", "::"):  # noqa: S104 - where it listens is not where one calls
        host = "127.0.0.1"
    if ":" in host:
        host = f"[{host}]"
    port = parts.port or {"http": 80, "https": 443}.get(scheme, 11434)
    return f"{parts.scheme}://{host}:{port}{parts.path}"


def pick_default(env: Mapping[str, str]) -> tuple[str, str]:
    """
    The model to use if a person names no model.

    Args:
        env: The process's environment variables.

    Returns:
        A form for `resolve_provider`, and one sentence for a human with the reason.

    `LOOOPY_MODEL` decides. Otherwise a model of the person's own is preferred: a server or a key
    that the environment names, then a running Ollama; the embedded model comes last. Blocks for up
    to a few seconds while it asks servers for their models.
    """
    if named := env.get("LOOOPY_MODEL"):
        return named, "LOOOPY_MODEL names it."
    if url := env.get("OPENAI_BASE_URL"):
        model = env.get("OPENAI_MODEL") or _first_model(url, env.get("OPENAI_API_KEY", ""))
        if model:
            return f"openai/{model}", f"OPENAI_BASE_URL points to {_shown(url)}."
    elif env.get("OPENAI_API_KEY"):
        model = env.get("OPENAI_MODEL") or DEFAULT_OPENAI_MODEL
        return f"openai/{model}", "OPENAI_API_KEY is set."
    if env.get("ANTHROPIC_API_KEY"):
        model = env.get("ANTHROPIC_MODEL") or DEFAULT_ANTHROPIC_MODEL
        return f"anthropic/{model}", "ANTHROPIC_API_KEY is set."
    if env.get("OPENROUTER_API_KEY") and env.get("OPENROUTER_MODEL"):
        model = env["OPENROUTER_MODEL"]
        return f"openrouter/{model}", "OPENROUTER_API_KEY and OPENROUTER_MODEL are set."
    if model := _ollama_model(_ollama_url(env)):
        return f"ollama/{model}", "Ollama is running and has it."
    return "local", "No key and no model server was found, so the embedded model runs here."


def _first_model(url: str, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    listed = _ask(f"{url.rstrip('/')}/models", headers=headers, timeout_s=_MODELS_TIMEOUT_S)
    names = [m.get("id") for m in _items(listed, "data")]
    return next((n for n in names if isinstance(n, str) and n), "")


def _ollama_model(url: str) -> str:
    """The first model that takes tools, or else the first that chats; empty if neither exists."""
    listed = _ask(f"{url}/api/tags", timeout_s=_OLLAMA_TIMEOUT_S)
    chats = ""
    for item in _items(listed, "models")[:_MODELS_ASKED]:
        name = item.get("name")
        if not isinstance(name, str) or not name:
            continue
        shown = _ask(f"{url}/api/show", {"model": name}, timeout_s=_MODELS_TIMEOUT_S)
        able = shown.get("capabilities") if isinstance(shown, dict) else None
        if isinstance(able, list) and "tools" in able:
            return name
        if not isinstance(able, list) or "completion" in able:
            chats = chats or name
    return chats


def _items(listed: Any, key: str) -> list[dict[str, Any]]:
    found = listed.get(key) if isinstance(listed, dict) else None
    return [i for i in found if isinstance(i, dict)] if isinstance(found, list) else []


def _ask(
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> Any:
    """The JSON at *url*; `None` if no server answers, or not with JSON."""
    import http.client  # most models are not asked for what they are

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request(
                "GET" if body is None else "POST",
                parts.path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json", **(headers or {})},
            )
            answer = connection.getresponse()
            said = answer.read(_MAX_LIST_BYTES)
            return json.loads(said) if answer.status == http.HTTPStatus.OK else None
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None
