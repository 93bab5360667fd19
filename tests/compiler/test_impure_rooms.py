"""Compiled functions may not call the parts of Wayfare that read files or keep state, wherever those modules lie."""

import pytest

import wayfare as wf
from wayfare.compiler.captures.trusted import unknown_code


@pytest.mark.parametrize("function", [
    wf.load, wf.onnx.export, wf.export, wf.load_program, wf.onnx.inspect, wf.debug.leaks, wf.report, wf.train.fit,
    wf.testing.assert_close, wf.data.DataLoader.__init__, wf.utils.tensorboard.SummaryWriter.__init__,
], ids=lambda function: function.__qualname__)  # fmt: skip
def test_what_reads_files_or_keeps_state_is_refused(function):
    assert f"calls {function.__module__}" in unknown_code(function.__code__, function.__module__)


@pytest.mark.parametrize("module", ["wayfare.exporters.trace", "wayfare.exporters.recover.paths"])
def test_every_module_of_the_exporters_is_refused(module):
    assert unknown_code(test_every_module_of_the_exporters_is_refused.__code__, module)


@pytest.mark.parametrize("module", ["wayfare.exporters.bundle.run", "wayfare.nn.linear", "wayfare.api.functions.shape"])
def test_what_only_computes_is_trusted(module):
    assert unknown_code(test_what_only_computes_is_trusted.__code__, module) is None
