"""Where the tests of exporting write."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"
