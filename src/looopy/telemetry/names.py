"""
The names of spans, attributes and metrics: from OpenTelemetry's GenAI conventions, and ours.

The GenAI names come from `opentelemetry-semantic-conventions` 0.66b2, module
`opentelemetry.semconv._incubating`; a test compares them. The two durations that this package lacks
come from `opentelemetry-util-genai` 1.3b0. All of them have the status Development, so they are
written down here, and not imported. Names of ours begin with `looopy.`.
"""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"  # on invoke_agent and chat, not on execute_tool
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - an attribute's name
ERROR_TYPE: Final = "error.type"
OTHER: Final = "_OTHER"  # the conventions' value for what has no name of its own

# Content, off by default.
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

TURN: Final = "looopy.turn"
CONTINUES: Final = "looopy.turn.continues"
OUTCOME: Final = "looopy.turn.outcome"
ITERATIONS: Final = "looopy.turn.iterations"
TURN_INPUT: Final = "looopy.turn.input_tokens"
TURN_OUTPUT: Final = "looopy.turn.output_tokens"
TURN_COST: Final = "looopy.turn.cost.usd"
ATTEMPT: Final = "looopy.attempt"
COST: Final = "looopy.cost.usd"
RATE_LIMIT: Final = "looopy.rate_limit"  # then the kind, and `left` or `limit`
REROUTED: Final = "looopy.rerouted_by"
LINK: Final = "looopy.link"
WAITS: Final = "looopy.tool.waits"
RECOVER: Final = "recover_turn"

CHAT_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - a metric's name
CHAT_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
TURN_DURATION: Final = "gen_ai.invoke_agent.duration"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
COMMIT_DURATION: Final = "looopy.commit.duration"
LEASE_WAIT: Final = "looopy.lease.wait"
TURNS_WAITING: Final = "looopy.turns.waiting"
TURNS_RUNNING: Final = "looopy.turns.running"
TURNS_RECOVERED: Final = "looopy.turns.recovered"
COST_UNKNOWN: Final = "looopy.cost.unknown"
