"""The last stage of a demo: its trained model as a file for ONNX Runtime, run there on what was held out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import Results
from wayfare.core.format import bytes_text, count_text, time_text

FILE = "model.onnx"
INSTALL = 'pip install "wayfare[onnx]"'

Arguments = tuple[wf.Tensor, ...]


def ship(
    page: Page, results: Results, function: nn.Module, example: Arguments,
    axes: Mapping[str, Mapping[int, str]], *, about: str, one: str, held_out: str, calls: Sequence[Arguments],
    scores: Callable[[], wf.Tensor],
) -> None:  # fmt: skip
    """Write the file, and compare what it gives for `calls`, one after the other, with the model's own `scores()`.

    `about` says what the file takes, `one` what the example is, and `held_out` what the calls are.
    """
    page.heading("Shipping")
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        page.say(f"Without onnx no model file is written: {INSTALL} brings it.")
        return
    page.say(f"wf.onnx.export writes the trained model as a file that needs no Python. {about} The file was compared "
             "with the model at other sizes while it was written; now it runs on what was held out.")  # fmt: skip
    path = results.folder / FILE
    with wf.no_grad():
        wanted = scores().flatten().cpu()
    function.cpu()  # a file is made from there
    with wf.device("cpu"):
        report = wf.onnx.export(function, tuple(t.cpu() for t in example), path, dynamic_axes=axes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    feeds = [dict(zip(names, (t.cpu().numpy() for t in call), strict=True)) for call in calls]
    start = time.perf_counter()
    given = [session.run(None, feed)[0] for feed in feeds]
    seconds = time.perf_counter() - start
    apart = (wf.cat([wf.from_numpy(each).flatten() for each in given]) - wanted).abs().max()
    runtime, compiled = (time_text(report.seconds[name]) for name in ("ONNX Runtime", "Wayfare, compiled"))
    page.entries({
        "written": f"{FILE}, {bytes_text(path.stat().st_size)}: {count_text(report.nodes)} nodes, opset {report.opset}",
        "takes": shapes(report.inputs),
        "gives": shapes(report.outputs),
        "held out": f"{held_out}, in {time_text(seconds)} in ONNX Runtime",
        "apart": f"{apart.item():.1e} at most from the scores of the model in Python",
        one: f"{runtime} in ONNX Runtime, {compiled} in Wayfare, compiled",
    })  # fmt: skip
    results.add(FILE, "the model for ONNX Runtime, which needs no Python")


def shapes(specs: Mapping[str, str]) -> str:
    """Names of inputs or outputs with their shapes."""
    return ", ".join(f"{name} {spec[spec.index('[') :]}" for name, spec in specs.items())
