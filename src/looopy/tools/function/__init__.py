"""
A Python function becomes a tool: its name, description and JSON Schema come from its signature.

A mistake in a signature raises at decoration, not in the middle of a turn. The function itself
stays callable. The room may import `tools`, `errors` and pydantic; it knows no other source.

- `decorator`: `@tool` and `FunctionTool`.
- `signature`: the parameters become a JSON Schema, and a call's arguments become Python objects.
- `docstring`: the description, and a line for each parameter.
- `threads`: threads for functions that block.

Exports: `tool` and `FunctionTool`, through `looopy.tools`. Read `decorator`, `signature`,
`docstring`, `threads`.
"""
