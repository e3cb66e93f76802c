"""
Models of OpenAI's two wire formats: chat completions and Responses.

Many servers speak chat completions, each with deviations: requests keep to what all of them accept,
and answers are read leniently. The room may import `llm`, `types` and `errors`; `provider` alone
imports the SDK.

- `provider`: `OpenAIProvider`, which chooses the format and sends the request.
- `vendor`: the vendors whose servers have fields of their own. `chat`: both directions of chat
  completions. `form`: its ids, order of roles, cache marks and sampling, by the server's dialect.
- `tokens`: OpenAI's tokenizer, if tiktoken is installed.
- `responses_format`: a request to Responses. `responses_events`: its answer.

Exports: `OpenAIProvider`, through `looopy.llm`. Read `provider`, `chat`, `responses_format`,
`responses_events`.
"""
