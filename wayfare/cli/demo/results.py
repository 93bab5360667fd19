"""What a demo leaves behind: a folder with a report, the model, the whole run, its history and its losses' picture."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.page import Page
from wayfare.io.files import write
from wayfare.io.replace import replace_text
from wayfare.io.structure import plan

FOLDER = Path("wayfare-demo")
REPORT = "report.html"


class Outcome(NamedTuple):
    """How a demo ended: the share of held-out examples that are right, and that of the commonest answer."""

    accuracy: float
    baseline: float


class Results:
    """The folder of one demo: `train` fills it while a model learns, `finish` says what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[str, str] = {}

    def train(
        self, page: Page, model: nn.Module, data: Iterable[Any], optimizer: wf.optim.Optimizer, **options: Any
    ) -> wf.train.History:
        """Fit with a log and a checkpoint in the folder, the epochs' table and the losses' curves on the page."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, run = self.folder / "history.jsonl", self.folder / "checkpoint"
        checkpoint = wf.Checkpoint(run, keep=1, model=model, optimizer=optimizer)
        for saved in checkpoint.saved:  # of the demo's last run
            saved.path.unlink()
        with page.taking_prints():
            history = wf.train.fit(
                model, data, optimizer=optimizer, log=log, checkpoint=checkpoint,
                callbacks=[wf.train.GradientFlow(every=4)],
                strategy="ddp" if wf.distributed.is_initialized() else None, **options,
            )  # fmt: skip
        if history.interrupted:
            raise KeyboardInterrupt
        page.listing(f"\n{history.plot(width=72, height=10)}\n")
        write(plan(model.state_dict()), str(self.folder / "model.safetensors"), {}, follow=False)
        history.save_plot(self.folder / "loss.svg", title=f"wayfare demo {self.folder.name}")
        self._written |= {
            "model.safetensors": "the weights: model.load_state_dict(wf.load(…))",
            "checkpoint/": "the whole run, to go on from: wf.Checkpoint(…).restore()",
            "history.jsonl": "a line an epoch: wf.train.History.load(…)",
            "loss.svg": "the curves as a picture",
        }
        return history

    def report(self, model: nn.Module, **what: Any) -> None:
        """Write the page that shows all of it."""
        wf.report(model, path=self.folder / REPORT, **what)
        self._written = {REPORT: "all of this and more as a page: open it in a browser", **self._written}

    def keep(self, name: str, about: str, value: Any) -> None:
        """Write what else is needed to use the model, as JSON."""
        replace_text(str(self.folder / name), [json.dumps(value, ensure_ascii=False, indent=0), "\n"])
        self.add(name, about)

    def add(self, name: str, about: str) -> None:
        """Count a file in the folder among those that are listed at the end."""
        self._written[name] = about

    def finish(self, page: Page) -> None:
        """Say where everything is."""
        page.heading("Files")
        page.say("What a program would keep of this is in the folder")
        page.place(str(self.folder))
        page.entries(self._written)
