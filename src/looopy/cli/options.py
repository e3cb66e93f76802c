"""
The commands of the program as a table: their functions, options, help texts and examples.

An entry of options is the option as its help shows it, and its help text:

- `--due`: a flag. `--no-wait`: a flag that turns `wait` off.
- `--limit N`: an option with a value; `N` also says how to read it, see `parser.READERS`.
- `--status {ready,busy}`: one of these. `--tag TAG ...`: may be repeated.
- `--port N = 8000`: has a default. `--to FILE required`: has to be given.
- `CONTEXT_ID`, `[CONTEXT_ID]`, `QUERY ...`, `[CONTEXT_ID ...]`: one argument, at most one, one or
  more, any number.

The function of a command takes each by its name, or by its name in `PARAMETERS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

DEFAULT_CONTEXT: Final = "chat"
PARAMETERS: Final[Mapping[str, str]] = {
    "--db": "url",
    "--server": "url",
    "--json": "as_json",
    "--yes": "agreed",
    "--format": "form",
    "--agent": "factory",
    "--continue": "go_on",
    "--message": "messages",
    "--tag": "tags",
    "--context": "context_id",
    "--request": "request_id",
    "--rename": "renamed",
    "--scrub": "scrubbed",
    "--allow-host": "names",
    "--origin": "origins",
    "--drain": "drain_s",
    "--limit NAME=NUMBER ...": "limits",
    "[CONTEXT_ID ...]": "context_ids",
    "FILE": "archive",
    "MODULE:FACTORY": "factory",
    "MODULE:FACTORY ...": "factories",
    "{bash,zsh,fish}": "shell",
}
Options: TypeAlias = Mapping[str, str]
Place: TypeAlias = Literal["", "database", "server", "any", "address"]

_FACTORY: Final = "a function (context_id, stores) -> Agent, in a module or in file.py"
_DATABASE: Final = "sqlite:///chat.db or postgresql://...; by default a file in your data folder"
_TOKEN: Final = {
    "--token TOKEN": "who you are on a server; by default LOOOPY_TOKEN, which other users of this"
    " machine cannot see"
}
_ANY: Final = {"--db,--server URL": f"{_DATABASE}; or a server: http://HOST:PORT", **_TOKEN}
PLACES: Final[Mapping[Place, Options]] = {
    "": {},
    "database": {"--db URL": _DATABASE},
    "server": {"--server,--db URL required": "http://HOST:PORT or https://HOST", **_TOKEN},
    "any": _ANY,
    "address": _ANY,
}
_JSON: Final = {"--json": "print one JSON object"}
_EVENTS: Final = {"--json": "print JSON, one event a line"}
_FORMAT: Final = {"--format {table,csv,json} = table": "'table' by default"}
_OWNER: Final = {"--owner ACTOR": "only conversations of this owner"}
_PAGES: Final = {"--after NEXT": "begin after the page that printed NEXT"}
_ERASE: Final = {
    "--keep-backups": "keep the copies that migrations left beside a SQLite file",
    "--yes": "erase without a question",
    **_JSON,
}
_TURN: Final = {"--no-wait": "do not wait for the end of the turn", **_EVENTS}
_REQUEST: Final = {
    "CONTEXT_ID": "",
    "[REQUEST_ID]": "which request; not needed if only one waits",
}
_TENANT: Final = {"--tenant NAME": "the tenant; 'default' by default"}
_STDIO: Final = {"--actor ACTOR": "the actor of every turn"}


class Command(NamedTuple):
    """
    A command.

    Attributes:
        run: `MODULE.FUNCTION` in this package.
        summary: Half a sentence for lists of commands.
        place: The place that it works on; its options are in `PLACES`. The function of a command
            for `any` place, or for a `server`, takes the opened `Conversations` and a terminal. One
            for an `address` takes `url` and `token`, one for a `database` takes `url`.
        about: A description for its own help; by default *summary*.
        after: A last paragraph of its help.
        examples: Command lines.
    """

    run: str
    summary: str
    options: Options = {}  # noqa: RUF012 - of a named tuple, which shares its defaults
    place: Place = ""
    about: str = ""
    after: str = ""
    examples: Sequence[str] = ()


class Group(NamedTuple):
    """Commands under one word."""

    summary: str
    commands: Mapping[str, Command]


_CHAT: Final = Command(
    "chat.chat",
    "talk to a model",
    {
        "[CONTEXT_ID]": f"the name of the conversation; by default {DEFAULT_CONTEXT!r}, and on a"
        " server a conversation of yours whose name begins with it",
        "--model NAME": "such as openai/gpt-5-mini, ollama/llama3.2 or local",
        "--message MESSAGE ...": "send this message and ask for none; may be repeated; '-' reads"
        " all of standard input",
        "--json": "print JSON, one event a line",
        "--yes": "agree to the download of a local model",
        "--no-tools": "offer no tools to the model",
        "--continue": "first continue an interrupted or failed turn, without a question",
    },
    "address",
    "Talk to a model. The next start continues the conversation, however this one ends.",
    "With --message, the exit status is 0 if every turn completed, 1 if one did not, and 2 for"
    " wrong usage or configuration.",
    (
        "looopy chat",
        "looopy chat trip --model ollama/llama3.2",
        "looopy chat --message 'Summarise this.' --message - < notes.txt",
        "looopy chat --server https://agents.example.org",
    ),
)
_CONTEXTS: Final = {
    "list": Command(
        "contexts.list_contexts",
        "list conversations, the last active first",
        {
            **_OWNER,
            "--status {ready,busy,waiting,failed}": "only with this status",
            "--tag TAG ...": "only with this tag; may be repeated",
            "--metadata KEY=VALUE ...": "only with this entry of metadata; VALUE is a text, a"
            " whole number, true or false; may be repeated",
            "--due": "only with an interrupted turn or an unread message",
            **_PAGES,
            "--limit N": "at most this many",
            **_JSON,
        },
        "any",
        examples=(
            "looopy contexts list --status waiting",
            "looopy contexts list --json --limit 10",
        ),
    ),
    "show": Command(
        "contexts.show_context",
        "print a conversation with its turns and messages",
        {"CONTEXT_ID": "", **_JSON},
        "any",
        examples=("looopy contexts show chat",),
    ),
    "search": Command(
        "contexts.search_contexts",
        "find messages by their words, the newest first",
        {
            "QUERY ...": "words to find",
            "--context CONTEXT_ID": "only in this conversation",
            "--owner ACTOR": "only in conversations of this owner",
            **_PAGES,
            "--limit N = 20": "at most this many, 20 by default",
            **_JSON,
        },
        "any",
        'Find the messages that have all words of QUERY: words, "a phrase", or a beginn*. The last'
        " active conversation comes first, and in it the newest message.",
        examples=("looopy contexts search invoice", "looopy contexts search '\"train to Rome\"'"),
    ),
    "fork": Command(
        "contexts.fork_context",
        "begin a conversation with the messages of another one",
        {
            "CONTEXT_ID": "",
            "NEW_CONTEXT_ID": "",
            "--at POSITION": "the last message to copy, where a turn ends; by default the newest",
            **_JSON,
        },
        "any",
        "Begin a conversation with the messages of another one. Later changes of one do not change"
        " the other.",
        examples=("looopy contexts fork trip trip-by-train --at 4",),
    ),
    "delete": Command(
        "erasure.delete_contexts",
        "erase conversations, or all conversations of a person",
        {
            "[CONTEXT_ID ...]": "",
            "--person ACTOR": "erase all conversations of this owner instead",
            "--force": "also while a turn runs",
            **_ERASE,
        },
        "any",
        "Erase conversations with everything in them, also from the files in which they were"
        " stored, and from the copies that migrations left beside a SQLite file.",
        "If the command is killed, run it again to erase the rest.",
        ("looopy contexts delete trip", "looopy contexts delete --person ada --yes"),
    ),
    "retain": Command(
        "erasure.retain_contexts",
        "erase conversations that are too old or too large",
        {
            "--older-than AGE": "such as 12h, 90d, 8w or 2y",
            "--larger-than SIZE": "such as 500MB or 2GB",
            "--per {owner,tenant} = owner": "the size is for each owner (the default) or for all"
            " together",
            **_OWNER,
            "--waiting": "also conversations that wait for an answer of a person",
            "--dry-run": "print the conversations that would go; erase nothing",
            **_ERASE,
        },
        "database",
        "Erase conversations that were inactive for too long. Then erase the longest inactive"
        " until the rest is small enough. A conversation with a running turn stays.",
        examples=(
            "looopy contexts retain --older-than 90d --dry-run",
            "looopy contexts retain --larger-than 2GB --per tenant --yes",
        ),
    ),
    "follow": Command(
        "turns.follow_context",
        "print the events of a conversation on a server as they come",
        {
            "CONTEXT_ID": "",
            "--after SEQ": "begin after this event; 0 is the beginning",
            "--until-end": "end when a turn has ended and no other one runs",
            **_EVENTS,
        },
        "server",
        "Print the events of a conversation on a server as they come, until Ctrl-C. The command"
        " reconnects by itself, and no event is lost or repeated.",
        examples=("looopy contexts follow trip --after 0 --json --server http://127.0.0.1:8000",),
    ),
    "send": Command(
        "turns.send_message",
        "send a message to a conversation on a server, and show the turn",
        {"CONTEXT_ID": "", "MESSAGE": "'-' reads all of standard input", **_TURN},
        "server",
        examples=("looopy contexts send trip 'And by train?' --server http://127.0.0.1:8000",),
    ),
    "continue": Command(
        "turns.send_message",
        "continue an interrupted or failed turn on a server, and show it",
        {"CONTEXT_ID": "", **_TURN},
        "server",
        examples=("looopy contexts continue trip --server http://127.0.0.1:8000",),
    ),
    "approve": Command(
        "turns.approve_call",
        "allow a call on a server that waits for approval",
        {
            **_REQUEST,
            "--args JSON": "run the call with these arguments instead",
            "--note TEXT": "a sentence for the model",
            **_TURN,
        },
        "server",
        examples=("looopy contexts approve trip --note 'Go.' --server http://127.0.0.1:8000",),
    ),
    "deny": Command(
        "turns.deny_call",
        "refuse a call on a server that waits for approval",
        {**_REQUEST, "--reason TEXT": "a sentence for the model", **_TURN},
        "server",
        examples=("looopy contexts deny trip --reason 'No.' --server http://127.0.0.1:8000",),
    ),
    "answer": Command(
        "turns.answer_request",
        "answer another question of a call on a server",
        {
            "CONTEXT_ID": "",
            "VALUE": "JSON, or text",
            "--request REQUEST_ID": "which question; not needed if only one waits",
            **_TURN,
        },
        "server",
        examples=("looopy contexts answer trip window --server http://127.0.0.1:8000",),
    ),
    "cancel": Command(
        "turns.cancel_turn",
        "stop the running turn of a conversation on a server",
        {"CONTEXT_ID": ""},
        "server",
        examples=("looopy contexts cancel trip --server http://127.0.0.1:8000",),
    ),
    "requests": Command(
        "turns.list_requests",
        "list the calls of other users on a server that wait for your approval",
        _JSON,
        "server",
        "List the calls in conversations of other users on a server that wait for your approval."
        " `looopy contexts approve` and `deny` decide them.",
        examples=("looopy contexts requests --server https://agents.example.org",),
    ),
    "export": Command(
        "archives.write_archive",
        "write conversations to an archive",
        {
            "[CONTEXT_ID ...]": "",
            "--owner ACTOR": "all conversations of this owner",
            "--to FILE required": "'-' is standard output",
            "--force": "replace FILE if it exists",
            "--sign": "sign the archive with the secret in LOOOPY_AUTH_KEY",
        },
        "database",
        "Write conversations with everything in them to one ZIP file that only you may read. Turns"
        " may run meanwhile.",
        examples=("looopy contexts export trip --to trip.zip",),
    ),
    "import": Command(
        "archives.read_archive",
        "read conversations from an archive",
        {
            "FILE": "'-' is standard input",
            "--new-ids": "give each conversation a new id",
            "--rename OLD=NEW ...": "give a conversation another id; may be repeated",
            "--owner ACTOR": "the owner of the conversations from now on",
            "--keep-owners": "keep the owners that the archive names; without this option, an"
            " owner other than --owner is refused",
            "--signed-only": "refuse an archive that was not signed with the secret in"
            " LOOOPY_AUTH_KEY",
            **_JSON,
        },
        "database",
        "Check an archive, and read all of its conversations into an existing database. If one of"
        " them is refused, none is read.",
        examples=("looopy contexts import trip.zip --db postgresql://localhost/agents",),
    ),
}
_USAGE: Final = Command(
    "usage.show_usage",
    "sum the tokens and the dollars of the conversations in a database",
    {
        "--by {context,owner,model,day} ...": "a sum for each; may be repeated; by default 'model'",
        **_OWNER,
        "--since DATE": "the first day, such as 2026-11-23",
        "--until DATE": "the last day, such as 2026-11-23",
        **_FORMAT,
    },
    "database",
    "Sum the tokens and the dollars of the conversations in a database. Days are UTC. A cost says"
    " so if a part of it is unknown; an unknown cost is never 0.",
    examples=("looopy usage --by day --by model", "looopy usage --since 2026-11-01 --format csv"),
)
_BUDGET: Final = {
    "show": Command(
        "budget.show_budgets",
        "show the use of a day and of its month",
        {
            "--owner ACTOR": "only of this owner",
            "--day DATE": "such as 2026-11-23; by default today",
            "--agent MODULE:FACTORY": f"show the application's limits too: {_FACTORY}",
            **_FORMAT,
            **_TENANT,
        },
        "any",
        "Show the use of the tenant and of each owner in a day and in its month, and the amounts"
        " that are reserved for running calls. Only periods that a budget limits are counted. Days"
        " are UTC. An unknown cost is never 0. A server shows your own budget, with its limits.",
        examples=("looopy budget show", "looopy budget show --agent app.py:build --owner ada"),
    ),
    "held": Command(
        "budget.show_held",
        "list the calls with a reservation, and which of them are dead",
        {**_FORMAT, **_TENANT},
        "database",
        "List the calls for which an amount is reserved. The process of a stuck call is gone. Its"
        " conversation settles the call when it continues, or `looopy budget release` does.",
        examples=("looopy budget held",),
    ),
    "release": Command(
        "budget.release_held",
        "give back the amount that is reserved for a dead call",
        {"RESERVATION": "its name, as `looopy budget held` shows it", **_TENANT},
        "database",
        "Give back the amount that is reserved for a dead call. First check with the provider that"
        " the call was not billed. A call that may still run is refused. If its process settles it"
        " after all, the call counts in full.",
        examples=("looopy budget release RESERVATION",),
    ),
}
_REPLAY: Final = Command(
    "replay.replay_turn",
    "run a stored turn again, answered from its log",
    {
        "CONTEXT_ID": "",
        "--turn N": "the number of the turn; by default the last one",
        "--agent MODULE:FACTORY": f"also compare prompt, tools and limits of: {_FACTORY}",
        "--ignore {model,tools,prompt} ...": "a part of requests that may differ; may be repeated",
        "--save FILE.json": "write the recording to this file, and with --agent a test beside it",
        "--scrub": "leave the contents out of the recording",
        "--fork [NEW_CONTEXT_ID]": "instead, run the turn with --agent, its model and its tools in"
        " a fork, and print both turns side by side",
        **_JSON,
    },
    "database",
    "Run a stored turn again without network and without effects: the log answers for the model"
    " and the tools. Prints the first difference to today's code.",
    "The exit status is 0 if the turn is the same, 1 if it differs, and 2 for wrong usage or an"
    " unknown turn.",
    (
        "looopy replay trip",
        "looopy replay trip --turn 2 --agent app.py:build --save tests/trip.json",
        "looopy replay trip --agent app.py:build --fork",
    ),
)
_DB: Final = {
    "upgrade": Command(
        "db.upgrade",
        "migrate up, by default to the newest schema",
        {"[REVISION] = head": ""},
        "database",
        examples=("looopy db upgrade --db postgresql://localhost/agents",),
    ),
    "downgrade": Command(
        "db.downgrade",
        "migrate down; 'base' drops all tables",
        {"REVISION": "", "--yes": "migrate without a question"},
        "database",
        examples=("looopy db downgrade base",),
    ),
    "check": Command(
        "db.check",
        "check that the schema is the one that this version needs",
        {},
        "database",
        "Check that the schema is the one that this version needs, and change nothing.",
        "Exit status, for deploy pipelines: 0 if it is. 1 if the schema is older or missing: run"
        " `looopy db upgrade` first. 3 if it is newer: do not start this version. 2 if the database"
        " cannot be read.",
        ("looopy db check --db postgresql://localhost/agents",),
    ),
    "sql": Command(
        "db.sql",
        "print the statements that make the schema",
        {},
        "database",
        examples=("looopy db sql --db postgresql://localhost/agents > schema.sql",),
    ),
    "secure": Command(
        "db.secure",
        "let Postgres itself keep the tenants apart",
        {"--role ROLE required": "the application's role: neither the owner nor a superuser"},
        "database",
        "Turn row-level security on for every table, and let ROLE use the tables. Run this command"
        " once, as the owner of the tables. Later upgrades keep it, for new tables too.",
        examples=("looopy db secure --role app --db postgresql://localhost/agents",),
    ),
    "backups": Command(
        "db.backups",
        "list or remove the copies that migrations left beside a SQLite file",
        {"--remove": "remove all of them"},
        "database",
        "List the copies that migrations left beside a SQLite file. They hold all the data of that"
        " time, deleted data included.",
        examples=("looopy db backups", "looopy db backups --remove"),
    ),
}
_SERVE: Final = Command(
    "serve.serve",
    "serve an application's agents over HTTP",
    {
        "MODULE:FACTORY": _FACTORY,
        "--host ADDRESS = 127.0.0.1": "the address to listen at, 127.0.0.1 by default",
        "--port N = 8000": "the port to listen at, 8000 by default; 0 is any free one",
        "--auth MODULE:FUNCTION": "authenticate(request) -> AuthContext or None: the sender of a"
        " request; by default one person on this machine, who has the printed token",
        "--may-answer MODULE:FUNCTION": "may_answer(request, auth) -> bool: who decides calls in"
        " conversations of other users that wait for approval; by default no other user does",
        "--allow-host NAME ...": "a name by which requests reach this server; may be repeated",
        "--origin URL ...": "the origin of web pages that may use this server; may be repeated",
        "--push HOST ...": "send push notifications of A2A to this host, '*' for any; may be"
        " repeated",
        "--protocols NAMES": "the protocols to serve, with commas between: http, page, a2a, ag-ui,"
        " ai-sdk, mcp, responses; by default all that are installed",
        "--limit NAME=NUMBER ...": "a field of looopy.server.Limits, such as turns_per_minute=60;"
        " may be repeated",
        "--drain SECONDS = 20": "how long the end of the server may take, running turns included;"
        " 20 by default",
        "--log {text,json} = text": "the form of the log on standard error: text, or json with one"
        " object a line",
    },
    "database",
    "Serve an application's agents over HTTP. At SIGTERM or Ctrl-C, the server ends after its"
    " running turns; a second signal ends it at once.",
    examples=(
        "looopy serve app.py:build",
        "looopy serve app:build --host 0.0.0.0 --allow-host api.example.org --auth app:who",
    ),
)
_ACP: Final = Command(
    "acp.acp",
    "serve an application's agents to an editor",
    {
        "MODULE:FACTORY": _FACTORY,
        **_STDIO,
        "--offer-allow": "offer a mode that allows calls which need approval, without a question",
    },
    "database",
    "Serve an application's agents by the Agent Client Protocol, over standard input and output."
    " An editor starts this command.",
    examples=("looopy acp app.py:build",),
)
_MCP: Final = Command(
    "mcp.mcp",
    "offer an application's agents as tools of an MCP server",
    {
        "MODULE:FACTORY ...": _FACTORY,
        **_STDIO,
        "--name NAME": "the name of the tool, 'ask' by default; several tools are named after their"
        " functions",
        "--description TEXT": "when a model should use the tool; by default the docstring of the"
        " factory",
    },
    "database",
    "Offer an application's agents as tools of an MCP server, over standard input and output. A"
    " program that uses tools starts this command.",
    examples=("looopy mcp app.py:build --name travel",),
)
_COMPLETION: Final = Command(
    "completion.show_script",
    "print the script that completes commands in your shell",
    {"{bash,zsh,fish}": "the shell"},
    about="Print the script that completes commands, options and their values in your shell.",
    examples=(
        'eval "$(looopy completion bash)"  # in ~/.bashrc',
        'eval "$(looopy completion zsh)"  # in ~/.zshrc, after compinit',
        "looopy completion fish > ~/.config/fish/completions/looopy.fish",
    ),
)
COMMANDS: Final[Mapping[str, Command | Group]] = {
    "chat": _CHAT,
    "contexts": Group("list, read, continue and erase conversations", _CONTEXTS),
    "usage": _USAGE,
    "budget": Group("show the use of daily and monthly budgets by owners and tenants", _BUDGET),
    "replay": _REPLAY,
    "db": Group("migrate a database, or check its schema", _DB),
    "serve": _SERVE,
    "acp": _ACP,
    "mcp": _MCP,
    "models": Command(
        "models.list_models",
        "show the model that would answer, and the models that can be downloaded",
        examples=("looopy models",),
    ),
    "completion": _COMPLETION,
}
