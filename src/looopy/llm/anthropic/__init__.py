"""
Claude models through Anthropic's Messages API.

The request puts cache marks where the next request finds them, and returns signed thinking byte for
byte. The room may import `llm`, `types` and `errors`; `provider` alone imports the SDK.

- `provider`: `AnthropicProvider`, which sends the request.
- `format`: a request becomes a body. `events`: the answer becomes stream events.
- `models`: the abilities and limits of each model, read from its name.

Exports: `AnthropicProvider`, through `looopy.llm`. Read `provider`, `format`, `events`, `models`.
"""
