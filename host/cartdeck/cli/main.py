"""Owns the command `cartdeck`: its commands, and how one ends: an exit code, and an error as one clear paragraph.

It does not know what the commands do; it loads none of the engine, so that --help is quick.
"""

import contextlib
import os
import sys
import traceback
from typing import Annotated, Final, cast

import typer

from cartdeck import __version__
from cartdeck.cli import call, caps, cartridges, config, demo, generate
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
    help="Run machine-learning models as cartridges: separate processes with typed caps.",
    epilog='Example: cartdeck generate "The capital of France is" --max-tokens 16',
)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("call")(call.call)
app.command("caps")(caps.caps)
app.add_typer(cartridges.app, name="cartridges")
app.add_typer(config.app, name="config")


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
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> int:
    """The console command. Every end has an exit code, and no traceback reaches a user."""
    _open_standard_descriptors()
    as_json = "--json" in sys.argv
    try:
        status = app(prog_name="cartdeck", standalone_mode=False)
    except CartdeckError as error:
        return _end_with(error, as_json=as_json)
    except USAGE_ERROR as error:
        return _end_with(_wrong_usage(error), as_json=as_json)
    except Interrupted as interruption:
        _end_with(failure(Code.CANCELLED, "A signal cancelled the call."), as_json=as_json)
        os._exit(128 + interruption.number)  # a thread may still wait for a reader of standard output
    except (ReaderGone, BrokenPipeError):
        return _leave_quietly()
    except (KeyboardInterrupt, typer.Abort):  # while no call ran
        return ExitCode.INTERRUPTED
    except Exception as error:  # the last edge, for what nobody foresaw
        return _end_with_fault(error)
    return status if isinstance(status, int) else ExitCode.DONE


def _end_with(error: CartdeckError, *, as_json: bool) -> ExitCode:
    from cartdeck.cli.output import StandardOutput
    from cartdeck.cli.render import error_record, error_text, json_line

    if as_json:
        try:
            StandardOutput().write(json_line(error_record(error)).encode())
        except ReaderGone:
            return _leave_quietly()
    else:
        _tell(error_text(error))
    return exit_code(error)


def _wrong_usage(error: Exception) -> CartdeckError:
    """Typer's complaint as an error of ours, with the command whose --help explains it."""
    message = str(getattr(error, "message", error)).strip().rstrip(".")
    described = getattr(error, "format_message", None)
    if callable(described):
        message = str(described()).strip().rstrip(".")
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "cartdeck")
    return failure(Code.BAD_ARGUMENT, f"{message}. `{command} --help` shows what there is.")


def _end_with_fault(error: Exception) -> ExitCode:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    _tell(
        f"error: unexpected {type(error).__name__}: {error}\n"
        f"This is a fault of cartdeck {__version__}; please report it, with what {TRACEBACK_VARIABLE}=1 shows.\n"
    )
    return ExitCode.FAULT


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads standard error: the exit code speaks
        sys.stderr.write(text)
        sys.stderr.flush()


def _leave_quietly() -> ExitCode:
    """Nobody reads standard output: what is still buffered must not fail when the interpreter flushes it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return ExitCode.READER_GONE


def _open_standard_descriptors() -> None:
    """Occupies 0, 1 and 2 where the caller closed them, so that no pipe of ours gets such a number.

    A closed standard output stays one that cannot be written: the first write then ends the command quietly.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
