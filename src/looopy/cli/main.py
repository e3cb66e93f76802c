"""
The program `looopy`: reads its arguments, runs one command, turns errors into a line and a status.

Each command is imported only when it runs, so that `looopy --help` loads next to nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

FAILED = 1
USAGE = 2
INTERRUPTED = 130

DEFAULT_CONTEXT = "chat"
_FACTORY_HELP = "a function (context_id, stores) -> Agent; or file.py:FACTORY"
_DB_HELP = "sqlite:///chat.db or postgresql://...; by default a file in your data folder"
_DB_OR_SERVER_HELP = f"{_DB_HELP}; or a server: http://HOST:PORT"
_SERVER_HELP = "http://HOST:PORT or https://HOST"
_CALLER_HELP = (
    "who you are on a server; by default LOOOPY_TOKEN, which other users of this machine cannot see"
)


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the program.

    Args:
        argv: The arguments; by default the process's own.

    Returns:
        0 when all went well; 1 for a turn that did not complete, or what was not found; 2 for wrong
        usage or configuration; 130 when Ctrl-C ended the program.
    """
    from looopy.cli.terminal import prepare_streams

    prepare_streams()
    parser = _parser()
    options = vars(parser.parse_args(argv))
    if options.pop("version"):
        return _version()
    if (run := options.pop("run", None)) is None:
        parser.print_help()
        return USAGE
    debug = os.environ.get("LOOOPY_DEBUG", "") not in ("", "0")
    _prepare_logs(debug)
    try:
        status: int = run(**options)  # each option has the name of a parameter
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a line, not a traceback
        return _fail(error, debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="looopy", description="Conversations with models that outlive their process."
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_chat(commands)
    _add_contexts(commands)
    _add_usage(commands)
    _add_budget(commands)
    _add_replay(commands)
    _add_db(commands)
    _add_serve(commands)
    _add_acp(commands)
    _add_mcp(commands)
    models = commands.add_parser(
        "models", help="show which model would answer, and which can be fetched"
    )
    models.set_defaults(run=_command("models", "list_models"))
    return parser


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model",
        description="Talk to a model; the next start continues the conversation in any case.",
        epilog="With --message the exit status is 0 if every turn completed, 1 if one did not, and"
        " 2 for wrong usage or configuration.",
    )
    chat.add_argument(
        "context_id",
        nargs="?",
        metavar="CONTEXT_ID",
        help=f"names the conversation, {DEFAULT_CONTEXT!r} by default; on a server, one of your"
        " own whose name begins so",
    )
    _add_place(chat)
    chat.add_argument(
        "--model", metavar="NAME", help="such as openai/gpt-5-mini, ollama/llama3.2 or local"
    )
    chat.add_argument(
        "--message",
        dest="messages",
        metavar="TEXT",
        action="append",
        default=[],
        type=_message,
        help="say this instead of asking for it; may be repeated; - is all of standard input",
    )
    for flag, name, action, about in (
        ("--json", "as_json", "store_true", "print one event a line, as JSON"),
        ("--yes", "agreed", "store_true", "agree to the download of a local model"),
        ("--no-tools", "with_tools", "store_false", "offer the model no tools"),
    ):
        chat.add_argument(flag, dest=name, action=action, help=about)
    chat.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="continue an interrupted or failed turn first, without asking",
    )
    chat.set_defaults(run=_command("chat", "chat"))


def _message(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the message is empty")
    return text


def _add_contexts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    contexts = commands.add_parser(
        "contexts",
        help="look at the conversations in a database or on a server, speak in them, erase them",
    )
    actions = contexts.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list them, the last active first")
    listing.add_argument("--owner", metavar="ACTOR", help="only of this owner")
    listing.add_argument(
        "--status", choices=("ready", "busy", "waiting", "failed"), help="only with this status"
    )
    listing.add_argument(
        "--tag", dest="tags", metavar="TAG", action="append", default=[], help="only with this tag"
    )
    listing.add_argument(
        "--metadata",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="only with this entry of metadata; VALUE is a text, a whole number, true or false",
    )
    listing.add_argument(
        "--due",
        action="store_true",
        help="only where somebody should act: a turn or a message was left behind",
    )
    listing.add_argument("--after", metavar="NEXT", help="begin behind the page that gave NEXT")
    listing.add_argument("--limit", metavar="N", type=int, help="at most so many")
    show = actions.add_parser("show", help="print one with its turns and messages")
    show.add_argument("context_id", metavar="CONTEXT_ID")
    search = actions.add_parser(
        "search",
        help="find messages by their words, the newest first",
        description='Find the messages that have all words of QUERY: words, "a phrase", or a'
        " beginn*. The last active conversation comes first, and in it the newest message.",
    )
    search.add_argument("query", metavar="QUERY", nargs="+", help="words to find")
    search.add_argument(
        "--context", dest="context_id", metavar="CONTEXT_ID", help="only in this one"
    )
    search.add_argument("--owner", metavar="ACTOR", help="only in those of this owner")
    search.add_argument("--after", metavar="NEXT", help="begin behind the page that gave NEXT")
    search.add_argument("--limit", metavar="N", type=int, default=20, help="at most so many")
    fork = actions.add_parser(
        "fork",
        help="make one that begins with the past of another",
        description="Make a conversation that begins with the past of another one. Neither changes"
        " the other afterwards.",
    )
    fork.add_argument("context_id", metavar="CONTEXT_ID")
    fork.add_argument("new_context_id", metavar="NEW_CONTEXT_ID")
    fork.add_argument(
        "--at",
        type=int,
        metavar="POSITION",
        help="the last message to copy, where a turn ends; by default the newest",
    )
    _add_erasing(actions)
    functions = {
        listing: "list_contexts",
        show: "show_context",
        search: "search_contexts",
        fork: "fork_context",
    }
    for action, function in functions.items():
        _add_place(action)
        action.add_argument(
            "--json", dest="as_json", action="store_true", help="print one JSON object"
        )
        action.set_defaults(run=_on_place("contexts", function))
    _add_speaking(actions)
    requests = actions.add_parser(
        "requests",
        help="list the calls of others on a server that wait for your approval",
        description="List the calls in conversations of others on a server that wait for your"
        " approval. `looopy contexts approve` and `deny` decide them.",
    )
    requests.add_argument(
        *("--server", "--db"), dest="url", metavar="URL", required=True, help=_SERVER_HELP
    )
    requests.add_argument("--token", metavar="TOKEN", help=_CALLER_HELP)
    requests.add_argument(
        "--json", dest="as_json", action="store_true", help="print one JSON object"
    )
    requests.set_defaults(run=_on_place("turns", "list_requests", of_server=True))
    _add_archives(actions)


def _add_place(action: argparse.ArgumentParser) -> None:
    """The options of a command that works on a database, and on a server."""
    action.add_argument("--db", "--server", dest="url", metavar="URL", help=_DB_OR_SERVER_HELP)
    action.add_argument("--token", metavar="TOKEN", help=_CALLER_HELP)


def _add_speaking(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that only a server has: it runs the turns."""
    follow = actions.add_parser(
        "follow",
        help="print the events of one on a server as they come",
        description="Print the events of a conversation on a server as they come, until Ctrl-C."
        " A broken connection is made again, and no event is lost or repeated.",
    )
    send = actions.add_parser("send", help="send a message to one on a server, and show the turn")
    go_on = actions.add_parser(
        "continue", help="continue an interrupted or failed turn on a server, and show it"
    )
    approve = actions.add_parser("approve", help="allow a call on a server that waits for approval")
    deny = actions.add_parser("deny", help="refuse a call on a server that waits for approval")
    answer = actions.add_parser("answer", help="answer another question of a call on a server")
    cancel = actions.add_parser("cancel", help="stop the running turn of one on a server")
    table = {
        follow: "follow_context",
        send: "send_message",
        go_on: "send_message",
        approve: "approve_call",
        deny: "deny_call",
        answer: "answer_request",
        cancel: "cancel_turn",
    }
    for action, function in table.items():
        action.add_argument("context_id", metavar="CONTEXT_ID")
        if action in (approve, deny):
            action.add_argument(
                "request_id", nargs="?", metavar="REQUEST_ID", help="the only one by default"
            )
        action.set_defaults(run=_on_place("turns", function, of_server=True))
    follow.add_argument(
        "--after", type=int, metavar="SEQ", help="begin behind this event; 0 is the beginning"
    )
    follow.add_argument(
        "--until-end", action="store_true", help="leave when a turn has ended and none runs"
    )
    send.add_argument("message", metavar="TEXT", type=_message, help="- is all of standard input")
    approve.add_argument("--args", metavar="JSON", help="run it with these arguments instead")
    approve.add_argument("--note", metavar="TEXT", help="a sentence for the model")
    deny.add_argument("--reason", metavar="TEXT", help="a sentence for the model")
    answer.add_argument("value", metavar="VALUE", help="JSON, or text")
    answer.add_argument("--request", dest="request_id", metavar="REQUEST_ID", help="which question")
    for action in table:
        action.add_argument(
            *("--server", "--db"), dest="url", metavar="URL", required=True, help=_SERVER_HELP
        )
        action.add_argument("--token", metavar="TOKEN", help=_CALLER_HELP)
        if action not in (follow, cancel):
            action.add_argument(
                "--no-wait", dest="wait", action="store_false", help="do not wait for the turn"
            )
        if action is not cancel:
            action.add_argument(
                "--json", dest="as_json", action="store_true", help="print JSON, an event a line"
            )


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay",
        help="run a stored turn again, answered from its log",
        description="Run a stored turn again without network and without effects: the model and the"
        " tools are answered from the log. Prints the first difference to the code of today.",
        epilog="The exit status is 0 if the turn is the same, 1 if something differs, and 2 for"
        " wrong usage or if there is no such turn.",
    )
    replay.add_argument("context_id", metavar="CONTEXT_ID")
    replay.add_argument("--turn", type=int, metavar="N", help="its number; by default the last one")
    replay.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
    replay.add_argument(
        "--agent",
        dest="factory",
        metavar="MODULE:FACTORY",
        help=f"compare its prompt, tools and limits too: {_FACTORY_HELP}",
    )
    replay.add_argument(
        "--ignore",
        choices=("model", "tools", "prompt"),
        action="append",
        default=[],
        help="a part of requests that may differ; may be repeated",
    )
    replay.add_argument(
        "--save",
        metavar="FILE.json",
        help="write the recording, and with --agent a test of it beside",
    )
    replay.add_argument(
        "--scrub", dest="scrubbed", action="store_true", help="without its contents"
    )
    replay.add_argument(
        "--fork",
        metavar="NEW_CONTEXT_ID",
        nargs="?",
        const="",
        help="instead, run the turn anew with --agent, its model and its tools, in a fork, and"
        " print both side by side",
    )
    replay.add_argument("--json", dest="as_json", action="store_true", help="print one JSON object")
    replay.set_defaults(run=_command("replay", "replay_turn"))


def _add_archives(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    out = actions.add_parser(
        "export",
        help="write them to an archive",
        description="Write conversations with everything in them to one ZIP file that only you may"
        " read. Turns may run meanwhile.",
    )
    out.add_argument("context_ids", nargs="*", metavar="CONTEXT_ID")
    out.add_argument("--owner", metavar="ACTOR", help="all of this owner")
    out.add_argument("--to", metavar="FILE", required=True, help="- is standard output")
    out.add_argument("--force", action="store_true", help="replace FILE if it exists")
    out.add_argument(
        "--sign", action="store_true", help="sign it with the secret in LOOOPY_AUTH_KEY"
    )
    out.set_defaults(run=_command("archives", "write_archive"))
    into = actions.add_parser(
        "import",
        help="read them from an archive",
        description="Check an archive and read all of its conversations into an existing database,"
        " or none.",
    )
    into.add_argument("archive", metavar="FILE", help="- is standard input")
    into.add_argument("--new-ids", action="store_true", help="give each a new id")
    into.add_argument(
        "--rename",
        dest="renamed",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="give one another id; may be repeated",
    )
    into.add_argument("--owner", metavar="ACTOR", help="who owns them from now on")
    into.add_argument(
        "--keep-owners",
        action="store_true",
        help="keep the owners whom the archive names; without it, any other than --owner is"
        " refused",
    )
    into.add_argument(
        "--signed-only",
        action="store_true",
        help="refuse an archive that was not signed with the secret in LOOOPY_AUTH_KEY",
    )
    into.add_argument("--json", dest="as_json", action="store_true", help="print one JSON object")
    into.set_defaults(run=_command("archives", "read_archive"))
    for action in (out, into):
        action.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)


def _add_erasing(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    delete = actions.add_parser(
        "delete",
        help="erase some of them, or all of a person",
        description="Erase conversations with everything in them, also from the files in which they"
        " were stored, and from the copies that migrations left beside a SQLite file.",
        epilog="If it is killed on the way, run it again to end the work.",
    )
    delete.add_argument("context_ids", metavar="CONTEXT_ID", nargs="*")
    delete.add_argument("--person", metavar="ACTOR", help="all conversations of this owner instead")
    delete.add_argument("--force", action="store_true", help="even while a turn runs")
    retain = actions.add_parser(
        "retain",
        help="erase those that are too old, or too much",
        description="Erase conversations that were inactive for too long, and then the longest"
        " inactive until what is left is small enough. A conversation with a running turn stays.",
    )
    retain.add_argument(
        "--older-than", metavar="AGE", type=_late("age"), help="such as 12h, 90d, 8w or 2y"
    )
    retain.add_argument(
        "--larger-than", metavar="SIZE", type=_late("size"), help="such as 500MB or 2GB"
    )
    retain.add_argument(
        "--per",
        choices=("owner", "tenant"),
        default="owner",
        help="the size is for each owner (the default) or for all together",
    )
    retain.add_argument("--owner", metavar="ACTOR", help="only of this owner")
    retain.add_argument(
        "--waiting", action="store_true", help="also those that wait for an answer of a person"
    )
    retain.add_argument("--dry-run", action="store_true", help="say what would go; erase nothing")
    for action in (delete, retain):
        action.add_argument("--keep-backups", action="store_true", help="keep the copies")
        action.add_argument(
            "--yes", dest="agreed", action="store_true", help="erase without a question"
        )
        action.add_argument(
            "--json", dest="as_json", action="store_true", help="print one JSON object"
        )
    _add_place(delete)
    delete.set_defaults(run=_on_place("erasure", "delete_contexts"))
    retain.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
    retain.set_defaults(run=_command("erasure", "retain_contexts"))


def _add_usage(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    usage = commands.add_parser(
        "usage",
        help="sum the tokens and the dollars of the conversations in a database",
        description="Sum the tokens and the dollars of the conversations in a database. Days are"
        " UTC. A cost of which a part is not known says so; an unknown cost is never 0.",
    )
    usage.add_argument(
        "--by",
        action="append",
        default=[],
        choices=("context", "owner", "model", "day"),
        help="a sum for each; may be repeated; by default 'model'",
    )
    usage.add_argument("--owner", metavar="ACTOR", help="only conversations of this owner")
    for flag, about in (("--since", "first"), ("--until", "last")):
        usage.add_argument(flag, metavar="DATE", type=_day, help=f"the {about} day: 2026-11-23")
    _add_format(usage)
    usage.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
    usage.set_defaults(run=_command("usage", "show_usage"))


def _add_format(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--format", dest="form", choices=("table", "csv", "json"), default="table", help="table"
    )


def _add_budget(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    budget = commands.add_parser(
        "budget", help="show what owners and tenants have used of a day's and a month's budget"
    )
    actions = budget.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="show the sums of a day and of its month",
        description="Show what the tenant and each owner have used in a day and in its month, and"
        " what is reserved for calls that run. Only periods that a budget limits are counted. Days"
        " are UTC. An unknown cost is never 0. A server shows your own budget, with its limits.",
    )
    show.add_argument("--owner", metavar="ACTOR", help="only of this owner")
    show.add_argument("--day", metavar="DATE", type=_day, help="2026-11-23; by default today")
    show.add_argument(
        "--agent",
        dest="factory",
        metavar="MODULE:FACTORY",
        help=f"show the application's limits too: {_FACTORY_HELP}",
    )
    held = actions.add_parser(
        "held",
        help="list the calls for which something is reserved, and which of them are dead",
        description="List the calls for which something is reserved. A call that is stuck has no"
        " process any more: its conversation settles it when it goes on, or `release` does.",
    )
    release = actions.add_parser(
        "release",
        help="give back what is reserved for a dead call",
        description="Give back what is reserved for a dead call, after you have seen at the"
        " provider that it was not billed. A call that may still run is refused. If its process"
        " settles it after all, it counts in full.",
    )
    release.add_argument("reservation", metavar="NAME", help="as `looopy budget held` shows it")
    functions = {show: "show_budgets", held: "show_held", release: "release_held"}
    for action, function in functions.items():
        if action is not release:
            _add_format(action)
        action.add_argument("--tenant", metavar="NAME", help="of this one; 'default' by default")
        if action is show:
            _add_place(show)
        else:
            action.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
        run = _on_place if action is show else _command
        action.set_defaults(run=run("budget", function))


def _day(text: str) -> Any:
    from datetime import date

    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2026-11-23") from None


def _late(name: str) -> Callable[[str], Any]:
    """The function *name* of `looopy.cli.erasure`, which is imported when it is called."""

    def read(text: str) -> Any:
        return getattr(importlib.import_module("looopy.cli.erasure"), name)(text)

    return read


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve an application's agents over HTTP",
        description="Serve an application's agents over HTTP. SIGTERM or Ctrl-C lets running turns"
        " end first; a second one does not wait.",
    )
    serve.add_argument("factory", metavar="MODULE:FACTORY", help=_FACTORY_HELP)
    serve.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="8000; 0: any free one")
    serve.add_argument(
        "--auth",
        metavar="MODULE:FUNCTION",
        help="tells who sends a request: authenticate(request) -> AuthContext or None; without it,"
        " one person on this machine, by a printed token",
    )
    serve.add_argument(
        "--may-answer",
        metavar="MODULE:FUNCTION",
        help="tells who decides calls in conversations of others that wait for approval:"
        " may_answer(request, auth) -> bool; without it, nobody",
    )
    for flag, name, metavar, about in (
        ("--allow-host", "names", "NAME", "a name by which requests reach this server"),
        ("--origin", "origins", "URL", "the origin of web pages that may use it"),
        ("--push", "push", "HOST", "send push notifications of A2A to this host, '*' for any"),
    ):
        serve.add_argument(
            flag,
            dest=name,
            metavar=metavar,
            action="append",
            default=[],
            help=f"{about}; may be repeated",
        )
    serve.add_argument(
        "--protocols",
        metavar="NAMES",
        help="those to serve, with commas between: http, page, a2a, ag-ui, ai-sdk, mcp, responses;"
        " without it, all that are installed",
    )
    serve.add_argument(
        "--limit",
        dest="limits",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="a field of looopy.server.Limits, such as turns_per_minute=60; may be repeated",
    )
    serve.add_argument(
        "--drain",
        dest="drain_s",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long the end may take, running turns included: 20",
    )
    serve.add_argument(
        "--log",
        dest="log",
        choices=("text", "json"),
        default="text",
        help="the form of the log on standard error: text, or json: one object a line",
    )
    serve.set_defaults(run=_command("serve", "serve"))


def _add_stdio(command: argparse.ArgumentParser) -> None:
    """The options of a protocol over standard input, which has one person."""
    command.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
    command.add_argument("--actor", metavar="ACTOR", help="the person for whom all turns act")


def _add_acp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    acp = commands.add_parser(
        "acp",
        help="serve an application's agents to an editor",
        description="Serve an application's agents by the Agent Client Protocol, over standard"
        " input and output. An editor starts this.",
    )
    acp.add_argument("factory", metavar="MODULE:FACTORY", help=_FACTORY_HELP)
    _add_stdio(acp)
    acp.add_argument(
        "--offer-allow",
        action="store_true",
        help="offer a mode that allows calls which need approval without asking",
    )
    acp.set_defaults(run=_command("acp", "acp"))


def _add_mcp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    mcp = commands.add_parser(
        "mcp",
        help="offer an application's agents as tools of an MCP server",
        description="Offer an application's agents as tools of an MCP server, over standard input"
        " and output. A program that uses tools starts this.",
    )
    mcp.add_argument("factories", metavar="MODULE:FACTORY", nargs="+", help=_FACTORY_HELP)
    _add_stdio(mcp)
    mcp.add_argument(
        "--name",
        metavar="NAME",
        help="the name of the tool, 'ask' by default; several have those of their functions",
    )
    mcp.add_argument(
        "--description",
        metavar="TEXT",
        help="when to use it, for a model; by default the docstring of the factory",
    )
    mcp.set_defaults(run=_command("mcp", "mcp"))


def _add_db(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    db = commands.add_parser("db", help="migrate a database, or check its schema")
    actions = db.add_subparsers(metavar="ACTION", required=True)
    upgrade = actions.add_parser("upgrade", help="migrate up, to the newest schema by default")
    upgrade.add_argument("revision", nargs="?", default="head", metavar="REVISION")
    downgrade = actions.add_parser("downgrade", help="migrate down; 'base' drops all tables")
    downgrade.add_argument("revision", metavar="REVISION")
    downgrade.add_argument(
        "--yes", dest="agreed", action="store_true", help="migrate without a question"
    )
    actions.add_parser(
        "check",
        help="check if the schema is the one that this version needs",
        description="Check if the schema is the one that this version needs; change nothing.",
        epilog="Exit status, for deploy pipelines: 0 if it is; 1 if it is older or there is none,"
        " so that `looopy db upgrade` comes first; 3 if it is newer, so that this version must not"
        " be started; 2 for a database that cannot be read.",
    )
    actions.add_parser("sql", help="print the statements that make the schema")
    secure = actions.add_parser(
        "secure",
        help="let Postgres itself keep the tenants apart",
        description="Turn row-level security on for every table, and let ROLE use them. Run it"
        " once, as the owner of the tables; later upgrades keep it, for new tables too.",
    )
    secure.add_argument(
        "--role",
        metavar="ROLE",
        required=True,
        help="the role of the application: neither the owner nor a superuser",
    )
    backups = actions.add_parser(
        "backups",
        help="list or remove the copies that migrations left beside a SQLite file",
        description="List the copies that migrations left beside a SQLite file. They hold all the"
        " data of that time, deleted data included.",
    )
    backups.add_argument("--remove", action="store_true", help="remove all of them")
    for name, action in actions.choices.items():
        action.add_argument("--db", dest="url", metavar="URL", help=_DB_HELP)
        action.set_defaults(run=_command("db", name))


# --- the commands ------------------------------------------------------------------------------


def _command(module: str, name: str) -> Callable[..., int]:
    """The function *name* of `looopy.cli.MODULE`, which is imported when the command runs."""

    def run(**options: Any) -> int:
        from looopy.cli.conversations.opening import is_server

        found = getattr(importlib.import_module(f"looopy.cli.{module}"), name)
        if "token" not in options and is_server(options.get("url")):
            raise _configuration("this command takes a database, not a server")
        status = found(**options)
        return status if isinstance(status, int) else _finished(status)

    return run


def _on_place(module: str, name: str, *, of_server: bool = False) -> Callable[..., int]:
    """
    The function *name* of `looopy.cli.MODULE`, which takes `Conversations` and a terminal.

    Args:
        of_server: A database has no such command.
    """

    def run(*, url: str | None, token: str | None, **options: Any) -> int:
        from looopy.cli.conversations.opening import is_server, open_conversations
        from looopy.cli.terminal import Terminal

        if of_server and not is_server(url):
            raise _configuration("this command takes a server: --server http://HOST:PORT")
        if token is not None and not is_server(url):
            raise _configuration("--token is for a server: --server http://HOST:PORT")
        found = getattr(importlib.import_module(f"looopy.cli.{module}"), name)
        terminal = Terminal(quiet_out=True)

        async def work() -> int:
            async with open_conversations(url, token, terminal) as place:
                ended: int = await found(place, terminal, **options)
                return ended

        return _finished(work())

    return run


def _finished(work: Coroutine[Any, Any, int]) -> int:
    import asyncio  # not for `looopy --help`

    return asyncio.run(work)


def _configuration(text: str) -> Exception:
    from looopy.errors import ConfigurationError  # not for `looopy --help`

    return ConfigurationError(text)


def _version() -> int:
    from importlib.metadata import version

    from looopy.cli.terminal import Terminal

    Terminal().line(f"looopy {version('looopy')}")
    return 0


# --- how it ends -------------------------------------------------------------------------------


def _prepare_logs(debug: bool) -> None:
    """Let only errors of our own reach the terminal, unless the user asks for more."""
    import logging

    if debug:
        from looopy.cli.terminal import log_lines

        log_lines(logging.INFO, logging.BASIC_FORMAT)
    else:
        logging.getLogger().addHandler(logging.NullHandler())


def _fail(error: Exception, debug: bool) -> int:
    from looopy.cli.terminal import Terminal
    from looopy.errors import (
        ConfigurationError,
        LooopyError,
        SchemaOutOfDate,
        StoreUnavailable,
        ValueRefused,
    )

    if debug:
        import traceback

        traceback.print_exception(error)
    terminal = Terminal(quiet_out=True)
    if not isinstance(error, LooopyError):
        terminal.error(
            f"{type(error).__name__}: {error} - a mistake in looopy; LOOOPY_DEBUG=1 shows more"
        )
        return FAILED
    terminal.error(str(error))
    ours = (ConfigurationError, SchemaOutOfDate, StoreUnavailable, ValueRefused)
    return USAGE if isinstance(error, ours) else FAILED


def _forget_stdout() -> None:
    """Close standard output after its reader has gone, so that the rest is dropped, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
