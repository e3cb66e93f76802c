"""
The vocabulary of every other room: frozen values without I/O.

A value does not change once it is made; only a `CancelToken` does. A store reads back an equal
value. The room imports `errors` and the standard library. It exports nothing itself: users import
these names from `looopy`, `looopy.llm` and `looopy.auth`.

- A conversation: `message` (messages and their blocks), `event` (what a subscriber sees), `summary`
  (a compaction in the log), `ranges` (what a rewound history shows), `artifact`, `state` (status,
  questions to a person), `approval` (answers to them), `result` (how a turn ended), `notices`
  (sentences about models that let a turn wait), `request` (what goes to a model, and its
  stream events).
- A turn's input: `context` (identity, credentials, cancelling), `auth`, `config` (limits, hooks).
- Rules: `storable` (may this value be stored), `message_fields` (the one table of what a message
  has, field by field), `message_check` (refuses callers' messages by it, repairs foreign ones),
  `message_json` (messages to JSON and back by it), `constructors` (fast ones of dataclasses),
  `dumping` (pydantic's `model_dump` for them), `arguments` (of a tool call, as a model wrote them),
  `json_schema` (schemas of others in today's words), `declared` (optional attributes of others'
  classes, and misspelt ones).
- `lazy`: how a package loads its names on first use.

Read `message`, `event`, `context`, `config`, `storable`.
"""
