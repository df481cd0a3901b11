"""How a function becomes a command: the options that commands share, and what becomes of their errors.

A command is an async function. Its first parameters are made by builders: functions whose own parameters become options
of the command, so that a group of options is written down once.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from satay.app import App
from satay.console import Output, answering, leave_output, report_error, report_problem
from satay.errors import InvalidValueError, OutputError, PipeClosedError, SatayError, UnknownWorkflowError
from satay.exits import MEANINGS, ExitCode
from satay.functions import run_app
from satay.model import EntryType
from satay.modules import import_modules
from satay.readers import JournalReader, open_reader
from satay.replay import recorded_call
from satay.settings import Settings, make_settings
from satay.translation import option_for

MAX_COMPLETIONS: Final = 50
"""The most words that a shell is offered."""

MODULES_VARIABLE: Final = "SATAY_MODULES"
"""The environment variable with the modules to import where no `-m` is given, separated by commas."""

_UsageProblem: Final = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""What typer raises for a command line that it does not understand: a parent of this, whose name is not public."""

_EXIT_CODES: Final = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."


_OPTIONS_OF_EVERY_COMMAND: Final = ("--db", "--data-dir", "--json")


class Command(TyperCommand):
    """One command. Reading its arguments writes its help, where that is asked for."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with answering():
            return super().make_context(*given, **options)


class Commands(TyperGroup):
    """The group of all commands. It ends with the exit code of the command, or with the one that an error means."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with answering():
            return super().make_context(*given, **options)

    def main(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        is_json = "--json" in arguments
        options |= {"prog_name": "satay", "standalone_mode": False}
        try:
            code = super().main(arguments or ["--help"], **options) or ExitCode.DONE
        except _UsageProblem as problem:
            code = ExitCode.USAGE
            report_problem("UsageError", _usage_message(problem), code, is_json=is_json, facts={})
        except UnknownWorkflowError as error:
            code = report_error(_with_hint(error), is_json=is_json)
        except PipeClosedError:
            code = ExitCode.PIPE_CLOSED
            leave_output()
        except OutputError as error:
            code = report_error(error, is_json=is_json)
            leave_output()
        except SatayError as error:
            code = report_error(error, is_json=is_json)
        except (KeyboardInterrupt, typer.Abort):
            code = ExitCode.INTERRUPTED
        sys.exit(int(code))


def _usage_message(problem: "typer.BadParameter") -> str:
    """What typer says, and the option that was meant by the name of a parameter."""
    message = problem.format_message().replace("Value error, ", "")  # pydantic's word for what typer checks with it.
    option = getattr(problem, "option_name", None) or ""
    if option in _OPTIONS_OF_EVERY_COMMAND and problem.ctx is not None and problem.ctx.parent is None:
        return f"{option} stands before the command; options follow it, as in 'satay runs {option}'"
    meant = option_for(option)
    return message if meant is None else f"{message.removesuffix('.')}. Did you mean {meant}?"


def _with_hint(error: UnknownWorkflowError) -> UnknownWorkflowError:
    return UnknownWorkflowError(f"{error}: name it with -m MODULE or in {MODULES_VARIABLE}")


_commands: Final[dict[str, Callable[..., None]]] = {}


def make_application(names: Iterable[str]) -> typer.Typer:
    """The application that has these commands, whose modules are imported."""
    application = typer.Typer(
        cls=Commands,
        no_args_is_help=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        epilog=_EXIT_CODES,
    )
    application.callback(epilog=_EXIT_CODES)(_describe)
    for name in names:
        application.command(name, cls=Command)(_commands[name])
    return application


def _describe() -> None:
    """Run, watch, fork and compare durable workflows.

    A run id may be shortened while it is unique. Commands that only read import none of your code.
    """


def command(*builders: Callable[..., Any]) -> Callable[[Callable[..., Awaitable[ExitCode | None]]], None]:
    """Make an async function a command of its name. Each builder makes one of its first arguments."""

    def decorate(fn: Callable[..., Awaitable[ExitCode | None]]) -> None:
        own = list(inspect.signature(fn).parameters.values())[len(builders) :]
        shared = [list(inspect.signature(builder).parameters.values()) for builder in builders]

        def run(**given: Any) -> None:
            made = [
                builder(**{parameter.name: given.pop(parameter.name) for parameter in parameters})
                for builder, parameters in zip(builders, shared, strict=True)
            ]
            raise typer.Exit(asyncio.run(_wait_for(fn(*made, **given))) or ExitCode.DONE)

        parameters = [*own, *(parameter for group in shared for parameter in group)]
        keyword_only = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
        run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]  # inspect reads it
        run.__doc__ = fn.__doc__
        _commands[fn.__name__] = run

    return decorate


async def _wait_for(work: Awaitable[ExitCode | None]) -> ExitCode | None:
    return await work


# --- what commands share ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a command works: the journal that it was told, and where its answer goes."""

    url: str | None
    data_dir: str | None
    output: Output

    @property
    def settings(self) -> Settings:
        """The settings, from the options and the environment."""
        return make_settings(self.url, self.data_dir)

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[JournalReader, None]:
        """A reader of the journal, which has to be there."""
        async with open_reader(self.settings) as reader:
            yield reader

    async def find(self, *shortened: str) -> list[str]:
        """The full ids of runs."""
        async with self.reader() as reader:
            return [await reader.find(each) for each in shortened]

    async def require_journal(self) -> None:
        """Raise `JournalNotFoundError` where there is none: an app would make it."""
        async with self.reader():
            pass

    def app(self) -> App:
        """An app on the journal, which makes it where there is none."""
        return run_app(self.url, data_dir=self.data_dir)

    @asynccontextmanager
    async def drive(self, modules: Sequence[str]) -> AsyncGenerator[App, None]:
        """An app that knows the workflows of the user's modules. What their code prints goes to the standard error."""
        with redirect_stdout(sys.stderr):
            import_modules(modules)
            async with self.app() as app:
                yield app


def open_desk(
    db: Annotated[
        str | None, typer.Option("--db", metavar="URL", help="The journal, sqlite:///path; else SATAY_DATABASE_URL.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="The directory of the journal; else SATAY_DATA_DIR, or .satay."),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, errors too.")] = False,
) -> Desk:
    """The builder of desks: the options that every command has. Raises `InvalidValueError` for two journals."""
    if data_dir == "":  # What a variable of a shell gives that is not set, and what would be the working directory.
        raise InvalidValueError("--data-dir '' names no directory; give the directory of the journal")
    if db is not None and data_dir is not None:
        raise InvalidValueError("--db and --data-dir name a journal each; give one of them")
    return Desk(db, data_dir, Output(is_json))


def named_modules(
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module", "-m", metavar="MODULE", help=f"A module with the code of the run; else {MODULES_VARIABLE}."
        ),
    ] = None,
) -> list[str]:
    """The builder of the list of modules to import."""
    return module or [name.strip() for name in os.environ.get(MODULES_VARIABLE, "").split(",") if name.strip()]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The run ids that begin with what was typed, for the shell."""

    async def ids(reader: JournalReader) -> list[str]:
        return await reader.archive.journal.ids(incomplete, MAX_COMPLETIONS)

    return _complete(ctx, ids)


def complete_task(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tasks that the run on the command line called, for the shell."""

    # While an option lacks its value, typer leaves arguments among those that it has not looked at.
    run: str = ctx.params.get("run") or next(iter(ctx.args), "")

    async def names(reader: JournalReader) -> list[str]:
        entries = await reader.archive.entries(await reader.find(run))
        called = (recorded_call(entry).name for entry in entries if entry.type == EntryType.TASK_SCHEDULED)
        return [name for name in dict.fromkeys(called) if name.startswith(incomplete)][:MAX_COMPLETIONS]

    return _complete(ctx, names)


def _complete(ctx: typer.Context, look_up: Callable[[JournalReader], Awaitable[list[str]]]) -> list[str]:
    """What a journal offers. Where there is none it offers nothing: the line is not complete, and no error yet."""
    desk = Desk(ctx.params.get("db"), ctx.params.get("data_dir"), Output(is_json=False))

    async def offered() -> list[str]:
        async with desk.reader() as reader:
            return await look_up(reader)

    try:
        return asyncio.run(offered())
    except SatayError:
        return []


Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, or the beginning of one.", autocompletion=complete_run)
]
"""The argument that names a run."""

MoreRuns = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="More.", autocompletion=complete_run)]
"""An argument that names any number of runs."""
