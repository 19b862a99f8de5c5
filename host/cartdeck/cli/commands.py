"""Owns the commands of `cartdeck`, and how one ends: an exit code, and an error as one clear paragraph.

It does not know what the commands do; it loads none of the engine, so that --help is quick.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final, cast

import typer

from cartdeck import __version__
from cartdeck.cli import (
    add,
    call,
    caps,
    cartridges,
    catalog,
    chat,
    check,
    config,
    demo,
    describe,
    doctor,
    embed,
    generate,
    info,
    install,
    models,
    new,
    plan,
    pull,
    remove,
    serve,
    serve_peers,
    top,
    trace,
    transcribe,
)
from cartdeck.cli.endings import Interrupted, ReaderGone
from cartdeck.cli.exit_codes import ExitCode, exit_code
from cartdeck_protocol.errors import CartdeckError, Code, failure

TRACEBACK_VARIABLE: Final = "CARTDECK_TRACEBACK"
# Typer exports only the subclasses of what it raises for wrong usage.
USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="cartdeck",
    rich_markup_mode=None,  # rich would double the time that --help takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},  # of all commands below it too
    help="Run machine-learning models as cartridges: separate processes with typed caps.",
    epilog='Example: cartdeck generate "The capital of France is" --max-tokens 16',
)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("describe", short_help="Say in words what images show.")(describe.describe)
app.command("embed", short_help="Give a vector for each text.")(embed.embed)
app.command("transcribe", short_help="Write down what is said in audio files.")(transcribe.transcribe)
app.command("info", short_help="Say what a model's file says of itself.")(info.info)
app.command("call")(call.call)
app.command("serve", short_help="Serve models over HTTP, as OpenAI does.")(serve.serve)
app.command("top", short_help="Watch a running server.")(top.top)
app.command("pull")(pull.pull)
app.command("add", short_help="Add a model of a hub's repository to the catalog.")(add.add)
app.command("update", short_help="Move a model to its repository's newer weights.")(add.update)
app.command("rollback", short_help="Undo a model's last update.")(add.rollback)
app.command("models", short_help="List the models that are kept here.")(models.models)
app.command("verify")(models.verify)
app.command("rm", short_help="Remove a model that is kept here.")(remove.remove)
app.command("caps")(caps.caps)
app.command("serve-peers", hidden=True)(serve_peers.serve_peers)
app.command("install", short_help="Install a cartridge.")(install.install)
app.command("uninstall", short_help="Remove a cartridge.")(install.uninstall)
app.command("doctor", short_help="Examine this installation.")(doctor.doctor)
app.command("check", short_help="Check a cartridge against the wire.")(check.check)
app.command("trace", short_help="Print the frames that a trace holds.")(trace.trace)
app.add_typer(cartridges.app, name="cartridges", short_help="List the cartridges, and what they lack.")
app.add_typer(catalog.app, name="catalog", short_help="Name models, and say how each is run.")
app.add_typer(config.app, name="config")
app.add_typer(new.app, name="new", short_help="Begin a cartridge of your own.")
app.add_typer(plan.app, name="plan")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"cartdeck {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def cartdeck(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write progress, log and errors to standard error as JSON lines.")
    ] = False,
) -> None:
    if log_json:
        from cartdeck.cli.json_log import start_json_log

        start_json_log()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(*, as_json: bool) -> int:
    """Runs the command that the arguments name; its exit code."""
    try:
        ended = app(_asked(sys.argv[1:]), prog_name="cartdeck", standalone_mode=False)
        status = ExitCode(ended or ExitCode.DONE)  # typer returns the code of an end that it was asked for
    except CartdeckError as error:
        status = _end_with(error, exit_code(error), as_json=as_json)
    except USAGE_ERROR as error:
        status = _end_with(_wrong_usage(error), ExitCode.BAD_ARGUMENTS, as_json=as_json)
    except Interrupted as interruption:
        error = failure(Code.CANCELLED, "A signal cancelled the call.")
        status = _end_with(error, ExitCode(128 + interruption.number), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):  # while no call ran
        status = ExitCode.INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        status = _leave_quietly()
    except Exception as error:  # the last edge, for what nobody foresaw
        status = _end_with(_fault(error), ExitCode.FAULT, as_json=as_json)
    return status


def _asked(arguments: list[str]) -> list[str]:
    """The arguments, `help COMMAND` being read as `COMMAND --help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


def _end_with(error: CartdeckError, status: ExitCode, *, as_json: bool) -> ExitCode:
    """Shows the error: a record on standard output, or a paragraph on standard error, or a line of its JSON log."""
    from cartdeck.cli.json_log import json_log
    from cartdeck.cli.option_names import with_options
    from cartdeck.cli.output import STANDARD_LINE, StandardOutput
    from cartdeck.cli.render import error_record, error_text, json_line

    if as_json:
        try:
            StandardOutput().write(json_line(error_record(error, status)).encode())
            return status
        except ReaderGone:
            _leave_quietly()
            return status
        except CartdeckError:
            pass  # the record cannot be written, as with a full disk: standard error has the word
    # Without a reader of standard error nobody can be told: the exit code speaks.
    with contextlib.suppress(OSError, ValueError):
        if (log := json_log()) is not None:
            log.write("error", error.message, **error_record(error, status))
        else:
            told = with_options(error, _options_of(sys.argv[1:]))
            sys.stderr.write(STANDARD_LINE.leave() + _without_echo(error) + error_text(told))
            sys.stderr.flush()
    return status


def _without_echo(error: CartdeckError) -> str:
    """What erases the `^C` that a terminal has written where the error is to begin."""
    is_echoed = error.code is Code.CANCELLED and os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
    return "\x1b[2K\x1b[G" if is_echoed else ""


def _wrong_usage(error: Exception) -> CartdeckError:
    """Typer's complaint as an error of ours, with the command whose --help explains it."""
    message = str(getattr(error, "message", error)).strip().rstrip(".")
    near: Sequence[str] | None = getattr(error, "possibilities", None)
    described = getattr(error, "format_message", None)
    if near:
        message += f". Near it: {', '.join(near)}"
    elif callable(described):
        message = str(described()).strip().rstrip(".")
    message = message.replace("Value error, ", "")  # pydantic's word for what it was told by typer
    context = getattr(error, "ctx", None)
    is_group = hasattr(getattr(context, "command", None), "commands")
    if (option := getattr(error, "option_name", None)) in _options_of_the_program():
        message = f"{option} is an option of cartdeck itself, and stands before the command: cartdeck {option} COMMAND"
    elif not near and type(error).__name__ == "NoSuchOption" and not is_group:
        message += ". A text that begins with - stands at the end, after --"
    command = getattr(context, "command_path", None) or _command_named(sys.argv[1:])
    end = "" if message.endswith("?") else "."
    return failure(Code.BAD_ARGUMENT, f"{message}{end} `{command} --help` shows what there is.")


def _options_of_the_program() -> list[str]:
    return [option for one in typer.main.get_command(app).params for option in one.opts]


def _command_named(arguments: Sequence[str]) -> str:
    """The command that the arguments begin with, where the complaint does not say whose it is."""
    return " ".join(["cartdeck", *_words_of_command(arguments)[0]])


def _options_of(arguments: Sequence[str]) -> list[str]:
    """The options that stand for arguments of a cap, of the command that the arguments begin with."""
    words, command = _words_of_command(arguments)
    if words[:1] in (["call"], ["plan"]):  # there arguments are given by their own names, which options may have too
        return []
    return [option for one in getattr(command, "params", ()) for option in getattr(one, "opts", ())]


def _words_of_command(arguments: Sequence[str]) -> tuple[list[str], object]:
    """The words that name the command, and the command itself."""
    words: list[str] = []
    command: object = typer.main.get_command(app)
    for word in (one for one in arguments if not one.startswith("-")):
        commands: dict[str, object] = getattr(command, "commands", {})
        if word not in commands:
            break
        words.append(word)
        command = commands[word]
    return words, command


def _fault(error: Exception) -> CartdeckError:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    what = f"unexpected {type(error).__name__}: {error}; this is a fault of cartdeck {__version__}"
    return failure(Code.INTERNAL, f"{what}. {TRACEBACK_VARIABLE}=1 shows where it is.")


def _leave_quietly() -> ExitCode:
    """Nobody reads standard output: what is still buffered must not fail when the interpreter flushes it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return ExitCode.READER_GONE
