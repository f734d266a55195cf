"""The command line: parse, call, print; nothing else. What a command needs is imported when it runs.

Exit codes: 0 done (for ``eval``: correct), 1 done with a bad outcome, 2 bad input, 3 the harness or the machine failed,
130 interrupted.
"""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pkb.errors import HarnessError, UserError

app = typer.Typer(
    help="How well language models write multi-GPU kernels: sweep models over problems, judge kernels, report.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

#: typer vendors click since 0.26 and names neither this class nor click's module itself.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Configuration, e.g. ranks=4 size=default.")
]
ConfigName = Annotated[str, typer.Option("--config", metavar="NAME", help="conf/NAME.yaml, or a path to a .yaml file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
ProblemId = Annotated[str, typer.Option("--problem", metavar="ID", help="Number or name, e.g. 1 or 001_allreduce.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, e.g. outputs/default-0123456789ab.")]


class Format(enum.StrEnum):
    """What ``pkb report`` writes."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


@app.command()
def sweep(
    overrides: Overrides = None,
    config: ConfigName = "default",
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue RUN with the configuration it was begun with.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many calls it would make and what they may cost; ask nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Run or continue a sweep, then print the table.

    \b
    Examples:
      pkb sweep                                     the demonstration, on any machine
      pkb sweep models=[my-model] problems=[1-32] device=cuda ranks=8 size=default
      pkb sweep models=[my-model] problems=all --dry-run
      pkb sweep cluster.address=auto run_dir=outputs/june
    The same command again continues where the last one ended.
    """
    from pkb import config as configuration

    settings = configuration.resumed(resume, overrides or []) if resume else configuration.load(overrides or [], config)
    if dry_run:
        from pkb.sweep.dry_run import dry_run as forecast

        return forecast(settings, json)
    from pkb.sweep.command import run_sweep

    return run_sweep(settings, json)


@app.command()
def status(run: Run, json: Json = False) -> int:
    """Show how far a run is, whoever started it.

    \b
    Example:
      pkb status outputs/default-0123456789ab
    """
    from pkb.sweep import status as view

    found = view.read(run)
    if json:
        _print_json(found)
    else:
        view.show(found)
    return 0


@app.command("eval")
def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with a function `solution`.")],
    problem: ProblemId,
    overrides: Overrides = None,
    config: ConfigName = "default",
    json: Json = False,
) -> int:
    """Judge one candidate file; exits with 0 only if the verdict is `correct`.

    \b
    Example:
      pkb eval my_allreduce.py --problem 1 ranks=2 size=default
    """
    from pkb import config as configuration
    from pkb.evaluate.one import judge_file
    from pkb.verdict import Verdict

    settings = configuration.load(overrides or [], config)
    evaluation = judge_file(file, problem, settings)
    if json:
        import dataclasses

        _print_json(dataclasses.asdict(evaluation))
    else:
        from pkb.show import evaluation_text

        print(evaluation_text(evaluation))
    return {Verdict.CORRECT: 0, Verdict.HARNESS_ERROR: 3}.get(evaluation.verdict, 1)


@app.command()
def profile(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with a function `solution`.")],
    problem: ProblemId,
    overrides: Overrides = None,
    config: ConfigName = "default",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write each rank's Chrome trace to DIR.")] = None,
    calls: Annotated[int, typer.Option("--calls", help="How many calls to profile.")] = 5,
    json: Json = False,
) -> int:
    """Show where a candidate's time goes on each rank; right or wrong does not matter here.

    \b
    Example:
      pkb profile my_allreduce.py --problem 1 size=default --out traces/
    """
    from pkb import config as configuration
    from pkb.evaluate.one import profile_file

    found = profile_file(file, problem, configuration.load(overrides or [], config), out, calls)
    if json:
        _print_json(found)
    else:
        from pkb.show import profile_text

        print(profile_text(found, out))
    return 0


@app.command()
def workspace(
    problem: ProblemId,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")],
    overrides: Overrides = None,
    config: ConfigName = "default",
) -> int:
    """Write a folder in which any coding agent can work on a problem, with a `check` command.

    \b
    Example:
      pkb workspace --problem 1 --out work/ ranks=2 && work/check
    """
    from pkb import config as configuration
    from pkb.refine import workspace as workspaces

    file = workspaces.create(problem, out, configuration.load(overrides or [], config))
    print(f"wrote {out}; the kernel goes to {file}, and {out / 'check'} says what is wrong with it")
    return 0


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `pkb workspace` wrote.")], json: Json = False
) -> int:
    """Say what is wrong with the kernel in a workspace, or how fast it is; exits with 0 only if it is correct.

    \b
    Example:
      pkb check work/ --json
    """
    from pkb.refine import workspace as workspaces

    found = workspaces.check(folder)
    if json:
        _print_json(found)
    else:
        print(found["text"], end="")
    return {"correct": 0, "harness_error": 3}.get(found["verdict"], 1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One or more run directories.")],
    format: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE instead of stdout.")] = None,
    assets: Annotated[bool, typer.Option("--assets", help="html: texts of all attempts, in a folder beside the file.")] = False,
    policy: Annotated[
        str, typer.Option("--policy", help="any: judge candidates that broke the run's policy by their values.")
    ] = "run",
) -> int:
    """Turn runs into tables: pass@k, fast_p@k, verdicts, cost.

    \b
    Example:
      pkb report outputs/june outputs/july --format html --out report.html
    """
    from pkb.analyze import report as reports

    text = reports.render(runs, format.value, out, policy, assets)
    if text is not None:
        print(text)
    elif out is not None:
        print(f"wrote {out}", file=sys.stderr)
    return 0


@app.command()
def problems(
    ident: Annotated[str | None, typer.Argument(metavar="[ID]", help="Number or name; all when left out.")] = None,
    json: Json = False,
) -> int:
    """List the problems, or show one with its sizes and cost.

    \b
    Examples:
      pkb problems
      pkb problems 13 --json
    """
    from pkb import show

    data = show.problem_list() if ident is None else show.problem_details(ident)
    if json:
        _print_json(data)
    else:
        print(show.problem_list_text(data) if ident is None else show.problem_details_text(data))
    return 0


@app.command()
def prompt(problem: ProblemId, overrides: Overrides = None, config: ConfigName = "default") -> int:
    """Print the exact prompt that a model gets.

    \b
    Example:
      pkb prompt --problem 1 device=cuda ranks=8 prompt.backend=triton
    """
    from pkb import config as configuration
    from pkb import problem as known
    from pkb import prompt as prompts

    print(prompts.render(known.resolve(problem), configuration.load(overrides or [], config)), end="")  # to the byte
    return 0


@app.command()
def audit(
    problem: Annotated[list[str] | None, typer.Option("--problem", metavar="ID", help="Repeatable; all when left out.")] = None,
    overrides: Overrides = None,
    config: ConfigName = "default",
    json: Json = False,
) -> int:
    """Try candidates that do no work on the problems; exits with 1 if any is accepted.

    \b
    Example:
      pkb audit --problem 1 --problem 7
    """
    from pkb import config as configuration
    from pkb import problem as known
    from pkb.evaluate.audit import audit as try_vacuous

    settings = configuration.load(overrides or [], config)
    found = try_vacuous([known.resolve(p) for p in problem] if problem else list(known.names()), settings)
    if json:
        _print_json(found)
    else:
        for entry in found["problems"]:
            accepted = ", ".join(entry["accepted"]) or "none"
            print(f"{entry['problem']}: {len(entry['tried'])} vacuous candidates tried, accepted: {accepted}")
    return int(any(entry["accepted"] for entry in found["problems"]))


@app.command("import")
def import_kernels(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Kernels named NN_stem_backend.py.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="The name they are reported under.")],
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="A new run directory.")],
    overrides: Overrides = None,
    config: ConfigName = "default",
) -> int:
    """Take a folder of existing kernels as the generations of a run, to be judged by `pkb sweep --resume RUN`.

    \b
    Example:
      pkb import kernels/ --model by-hand --run outputs/by-hand device=cuda ranks=8
    """
    from pkb import problem as known
    from pkb.sweep import kernels

    found = kernels.import_folder(folder, model, run, overrides or [], config)
    for name, reason in found.skipped:
        print(f"skipped {name}: {reason}")
    print(
        f"imported {found.files} kernels for {found.problems} of {len(known.names())} problems as the generations of {run}; "
        f"judge them with: pkb sweep --resume {run}"
    )
    return 0


@app.command()
def export(run: Run, out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")]) -> int:
    """Write a run as a data set: problems, generations, evaluations (Parquet) and a card.

    \b
    Example:
      pkb export outputs/june --out june-dataset
    """
    from pkb.analyze import export as exports

    for note in exports.export(run, out):
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {out}")
    return 0


@app.command()
def doctor(json: Json = False) -> int:
    """Say what this machine can run, and what is missing.

    \b
    Example:
      pkb doctor
    """
    from pkb import show
    from pkb.doctor import examine

    found = examine()
    if json:
        _print_json(found)
    else:
        print(show.findings_text(found))
    return 0


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """The exit code of one command line; errors that are no bugs are one line on stderr."""
    try:
        return int(typer.main.get_command(app).main(arguments or ["--help"], "pkb", standalone_mode=False) or 0)
    except UserError as error:
        return _fail(error, 2)
    except HarnessError as error:
        return _fail(error, 3)
    except _CommandLineError as error:
        return _fail(f"{error.format_message()} (see `pkb {' '.join(arguments[:1])} --help`)", 2)
    except ModuleNotFoundError as error:
        if (error.name or "pkb").split(".")[0] in ("pkb", "actors"):
            raise
        return _fail(f"this command needs the Python package '{error.name}': pip install {error.name}", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # `pkb problems | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: object, code: int) -> int:
    print("pkb: " + " ".join(str(message).split()), file=sys.stderr)
    return code


def _print_json(data: Any) -> None:
    from pkb.show import json_text

    print(json_text(data))
