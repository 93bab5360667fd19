"""`wayfare demo [regression|sequences|trees|all]`: its options, and running the demos one after the other."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import wayfare as wf
from wayfare.cli.demo import regression, sequences, trees
from wayfare.cli.demo.corpus import NoSourcesError
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import FOLDER, REPORT, Outcome, Results
from wayfare.core.config import settings
from wayfare.distributed import launch

DEMOS: dict[str, ModuleType] = {"regression": regression, "sequences": sequences, "trees": trees}
EVERY = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command to a parser of the command line."""
    parser.add_argument(
        "name", nargs="?", choices=[*DEMOS, EVERY], default=EVERY,
        help="a network on rows of numbers, an LSTM on words, a Tree-LSTM on syntax trees, or all three (all)",
    )  # fmt: skip
    usual = ", ".join(f"{demo.EPOCHS} for {name}" for name, demo in DEMOS.items())
    parser.add_argument(
        "--epochs", type=read_count, metavar="N", help=f"how often to go through the training data ({usual})"
    )
    parser.add_argument(
        "--seed", type=read_seed, default=0, metavar="N", help="the seed of data, split, weights and order (0)"
    )
    parser.add_argument(
        "--out", type=Path, default=FOLDER, metavar="FOLDER",
        help=f"where reports, models and histories go, a folder for each demo ({FOLDER})",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="where the networks learn: cpu, cuda or cuda:1 (cpu)"
    )
    parser.add_argument(
        "--ranks", type=read_count, default=1, metavar="N", help="how many processes train together, with MPI (1)"
    )


def run(options: argparse.Namespace) -> int:
    """Run what was asked for, on one process or several; returns the exit status."""
    try:
        device = wf.device(options.device)
    except wf.errors.WayfareError as error:
        return _said(f"{error.sentence.rstrip('.')}. {error.fix}".rstrip())
    if options.ranks == 1:
        with device:
            return run_here(options)
    if device.type != "cpu":
        return _said("processes that train together send tensors of the CPU. Leave --ranks or --device out.")
    if settings.launched_ranks is None:
        given = ["--epochs", str(options.epochs)] if options.epochs is not None else []
        again = ["-m", "wayfare", "demo", options.name, *given, "--seed", str(options.seed), "--out", str(options.out),
                 "--ranks", str(options.ranks)]  # fmt: skip
        try:
            return launch.start(launch.command(options.ranks, again), options.ranks)
        except wf.distributed.DistributedError as error:
            return _said(str(error))
    wf.distributed.init_process_group("mpi")
    try:
        if wf.distributed.get_rank() == 0:
            return run_here(options)
        # The other ranks do the same, and rank 0 shows it.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            options.out = Path(folder)
            return run_here(options)
    finally:
        wf.distributed.destroy_process_group()


def run_here(options: argparse.Namespace) -> int:
    """The part of this process."""
    page = Page()
    names = list(DEMOS) if options.name == EVERY else [options.name]
    rows, pages = [], []
    for name in names:
        start = time.monotonic()
        try:
            outcome = run_one(page, name, options)
        except NoSourcesError as error:
            page.say(str(error))
            rows.append((name, "-", "-", "-"))
        except BrokenPipeError:
            raise
        except OSError as error:
            why = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            return _said(f"cannot write to {options.out / name}: {why}")
        else:
            seconds = f"{time.monotonic() - start:.0f} s"
            pages.append(options.out / name / REPORT)
            rows.append((name, f"{outcome.accuracy:.1%}", f"{outcome.baseline:.1%}", seconds))
        if name != names[-1]:
            page.listing("\n")
    if options.name == EVERY:
        page.heading("All demos")
        page.say("The share of held-out examples each got right, beside always giving the commonest answer:")
        page.table(("demo", "right", "commonest", "time"), rows)
    if options.name == EVERY and pages:
        page.say("Each has a page to open in a browser:")
        for path in pages:
            page.place(str(path))
    # A demo that was asked for by its name and could not run has failed.
    return int(options.name != EVERY and rows[0][1] == "-")


def run_one(page: Page, name: str, options: argparse.Namespace) -> Outcome:
    """Run one demo on the page."""
    demo = DEMOS[name]
    epochs = demo.EPOCHS if options.epochs is None else options.epochs
    outcome: Outcome = demo.run(page, Results(options.out / name), epochs=epochs, seed=options.seed)
    return outcome


def _said(why: str) -> int:
    print(f"wayfare demo: {why}", file=sys.stderr)
    return 1


def read_count(text: str) -> int:
    """Read a count that must be at least one."""
    count = read_int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return count


def read_seed(text: str) -> int:
    """Read a number that a generator takes as its seed."""
    number = read_int(text)
    if not -(2**63) <= number < 2**64:
        raise argparse.ArgumentTypeError(f"{text} does not fit into 64 bits")
    return number


def read_int(text: str) -> int:
    """Read an int, or say in words that it is none."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
