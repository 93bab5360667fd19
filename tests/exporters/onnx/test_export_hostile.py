"""What users do wrong, and what must never be frozen without being seen."""

import builtins
import subprocess
import sys

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, onnx, run, same
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, ExportError

ROWS = {"x": {0: "rows", 1: "columns"}}


# -- sizes that nobody tried


def later(x):
    y = x[:, 1:] + 1
    return y if y.shape[1] < 2000 else -y


@pytest.mark.parametrize("function", [
    lambda x: x * 2 if x.shape[0] > 1000 else x,
    lambda x: x * 2 if x.shape[0] == 2 else x,
    lambda x: x * 2 if x.shape[0] % 64 == 0 else x,
    lambda x: x * 2 if x.size(0) in (100, 200) else x,
    lambda x: x * 2 if len(x) > 1000 else x,
    lambda x: x * 2 if len((x + 1).t()) == 333 else x,
    lambda x: x[:, : min(x.shape[1], 300)],
    lambda x: x * max(x.shape[0], 4096),
    later,
])  # fmt: skip
@pytest.mark.parametrize("write", [export, wf.export])
def test_a_decision_on_a_size_far_away_is_found(path, function, write):
    with pytest.raises(ExportError, match=r"rows=|columns="):
        write(function, (wf.randn(4, 6),), path, dynamic_axes=ROWS)
    assert not path.exists()


def test_len_is_itself_again_after_an_export(path):
    before = builtins.len

    def fails_when_asked(x):
        if type(len(x)) is not int:
            raise KeyboardInterrupt
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        export(fails_when_asked, (wf.randn(4, 6),), path, dynamic_axes=ROWS)
    assert builtins.len is before


def test_the_line_of_a_decision_on_a_size_is_named(path):
    with pytest.raises(ExportError, match=r"rows=1001, .* because Python decides by a size here \(test_export_hostile"):
        export(lambda x: x * 2 if x.shape[0] > 1000 else x, (wf.randn(4, 6),), path, dynamic_axes=ROWS)


def test_a_decision_on_a_size_too_large_to_try_is_a_warning(path):
    with pytest.warns(UserWarning, match="too large to be tried"):
        report = export(lambda x: x * 2 if x.numel() > 10**10 else x, (wf.randn(4, 6),), path, dynamic_axes=ROWS)
    assert "Python decides by a size" in str(report)
    (note,) = [p.value for p in onnx.load(path).metadata_props if p.key == "wayfare.notes"]
    assert "too large to be tried" in note


def test_ways_that_come_to_the_same_may_be_taken_by_size(path):
    def in_parts(x):
        return wf.cat([x[:50] + 1, x[50:] + 1]) if x.shape[0] > 500 else x + 1

    report = export(in_parts, (wf.randn(4, 6),), path, dynamic_axes=ROWS)
    assert report.ranges["rows"][1] >= 1002 and report.ranges["columns"] == (1, 257)
    assert "rows from 1 to " in str(report) and "others were not tried" in str(report)
    (sizes,) = [p.value for p in onnx.load(path).metadata_props if p.key == "wayfare.sizes"]
    assert '"columns": [1, 257]' in sizes


def test_sizes_with_halves_and_products(path):
    def f(x):
        rows, columns = x.shape
        half = columns // 2
        return x[:, :half].reshape(rows * half), wf.zeros((columns + 1) // 2 * rows), wf.arange(3 * half + 1)

    export(f, (wf.randn(4, 6),), path, dynamic_axes=ROWS)
    got = run(path, np.ones((3, 11), np.float32))
    assert [g.shape for g in got] == [(15,), (18,), (16,)]


@pytest.mark.parametrize("write", [export, wf.export])
def test_plain_values_among_the_results_are_not_frozen(path, write):
    with pytest.raises(ExportError, match="the plain value 5 in one run and 4 in another"):
        write(lambda x: (x, x.shape[0]), (wf.randn(2, 6),), path, dynamic_axes=ROWS)
    with pytest.raises(ExportError, match="other tuples, lists or dictionaries"):
        write(lambda x: x if x.sum() > 0 else (x, x), [(wf.ones(2),), (-wf.ones(2),)], path)


# -- state of Python


@pytest.mark.parametrize("write", [export, wf.export])
def test_a_counter_is_noticed_and_nothing_is_written(path, write):
    count = [0]

    def f(x):
        count[0] += 1
        return x * count[0]

    with pytest.raises(ExportError, match="is another when it is called again"):
        write(f, (wf.ones(2),), path)
    assert not path.exists()


def two_decisions(x):
    scale = 1
    if x.sum() > 0:
        scale = 2
    if x.max() > 1:
        x = x * scale
    return x


SHOWN = [(wf.tensor([0.1, 0.2]),), (wf.tensor([-3.0, -4.0]),), (wf.tensor([2.0, 3.0]),)]


@pytest.mark.parametrize("write", [export, wf.export])
def test_a_combination_that_matters_is_found_by_mixing_examples(path, write):
    made = write(two_decisions, SHOWN, path)
    for numbers in ([-5.0, 2.0], [5.0, 2.0], [0.5, 0.1], [-0.5, 0.1]):
        x = wf.tensor(numbers)
        got = run(path, x.numpy())[0] if write is export else made(x).numpy()
        assert np.allclose(got, two_decisions(x).numpy())


def test_a_counter_of_python_follows_its_decisions(path):
    def f(x):
        count = 0
        for row in x:
            if row.sum() > 0:
                count += 1
        return x + count

    export(f, [(wf.ones(2, 2),), (-wf.ones(2, 2),), (wf.tensor([[1.0, 1.0], [-1.0, -1.0]]),)], path)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        same(path, f, wf.tensor(signs).float().unsqueeze(1).expand(2, 2).contiguous())


def test_a_way_that_no_example_shows_is_found_by_mixing_them(path):
    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    export(f, (wf.tensor([3.0, -1.0, 0.5]),), path)
    for sign in (1.0, -1.0):
        assert np.allclose(run(path, np.full(3, sign, np.float32))[0], f(wf.full((3,), sign)).numpy())


def test_a_combination_that_was_not_seen_is_a_warning(path):
    def f(x):
        if x.sum() > 0:
            x = x + 1
        if x.max() > 1:
            x = x * 2
        return x

    with pytest.warns(UserWarning, match="2 of 4 combinations of the decisions"):
        export(f, SHOWN, path)
    for numbers in ([-5.0, 2.0], [0.5, 0.1], [-0.5, 0.1]):
        x = np.array(numbers, np.float32)
        assert np.allclose(run(path, x)[0], f(wf.tensor(x)).numpy())


def test_a_value_of_a_way_that_always_went_with_another(path):
    def f(x):
        y = x + 1 if x.sum() > 0 else x * 2
        return y * 3 if x.max() > 0 else x

    # Mixtures of numbers of one sign have no other combination of the two; it takes an example.
    with pytest.raises(ExportError, match=r"made only where the decision at .* is True, and no example came here"):
        export(f, [(wf.ones(1),), (-wf.ones(1),)], path)
    for examples in ([(wf.ones(2),), (-wf.ones(2),), (wf.tensor([-5.0, 1.0]),)], [(wf.ones(2),), (-wf.ones(2),)]):
        with pytest.warns(UserWarning, match="3 of 4"):
            export(f, examples, path)
        for numbers in ([1.0, 2.0], [-1.0, -2.0], [-3.0, 2.0]):
            same(path, f, wf.tensor(numbers))


def test_two_questions_on_one_line(path):
    def f(x):
        if (x > 0).all() and (x < 10).any():
            return x
        return -x

    export(f, [(wf.ones(2),), (-wf.ones(2),), (wf.full((2,), 20.0),)], path)
    for number in (1.0, -1.0, 20.0):
        x = np.full(2, number, np.float32)
        assert np.array_equal(run(path, x)[0], f(wf.tensor(x)).numpy())
    with pytest.raises(ExportError, match="it was True in every example"):
        export(f, [(wf.ones(2),), (-wf.ones(2),)], path)


def test_a_carried_value_that_had_not_changed_yet_is_not_taken_for_a_constant(path):
    def f(x):
        a, b = x[0], wf.zeros(3)
        for t in range(x.shape[0]):
            if x[t].sum() > 0:
                a = a - b
                b = x[t] * 1.0
        return a, b

    once = wf.tensor([[-1.0] * 3, [1.0] * 3, [-1.0] * 3, [-2.0] * 3])
    export(f, [(once,)], path, dynamic_axes={"x": {0: "length"}})
    wf.manual_seed(0)
    for length in (1, 2, 3, 12):
        same(path, f, wf.randn(length, 3))


def test_a_number_without_dimensions_in_one_way(path):
    def f(x, k):
        if x.sum() > 0:
            k = k + 1
        return x * k

    export(f, [(wf.ones(2), wf.tensor(2)), (-wf.ones(2), wf.tensor(5))], path)
    assert run(path, np.ones(2, np.float32), np.array(7))[0].tolist() == [8.0, 8.0]


def test_made_up_numbers_do_not_keep_a_loop_going_for_ever(path):
    def f(x):
        return wf.while_loop(lambda v: v.sum() < 10, lambda v: wf.cat([v, v]), (x,))

    export(f, (wf.tensor([3.0, -1.0]),), path)


# -- empty sequences


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_an_empty_sequence_is_an_error_and_not_the_end_of_the_process(path, kind):
    layer = getattr(nn, kind)(3, 4, batch_first=True)
    export(lambda x: layer(x)[0], (wf.randn(2, 5, 3),), path, dynamic_axes={"x": {0: "batch", 1: "length"}})
    code = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
session = onnxruntime.InferenceSession(sys.argv[1], options)
for shape in ((2, 0, 3), (0, 5, 3)):
    try:
        session.run(None, {"x": numpy.zeros(shape, numpy.float32)})
    except Exception as error:
        print("not_empty" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"] and done.returncode == 0


# -- wrong arguments and refusals


@pytest.mark.parametrize(("examples", "options", "kind", "words"), [
    ([wf.ones(2), wf.ones(2)], {}, ArgumentTypeError, "an example has 1 arguments, and the function is .*a list holds"),
    ((wf.ones(2),) * 3, {}, ArgumentTypeError, "an example has 3 arguments"),
    ((wf.ones(2),) * 2, {"dynamic_axes": ["a"]}, ArgumentTypeError, "dynamic_axes must be a dictionary"),
    ((wf.ones(2),) * 2, {"dynamic_axes": {"a": 0}}, ArgumentTypeError, "the axes of a are 0"),
    ((wf.ones(2),) * 2, {"dynamic_axes": {"a": {True: "n"}}}, ArgumentError, "no axis True"),
    ((wf.ones(2),) * 2, {"dynamic_axes": {"a": {0: "n", -1: "m"}}}, ArgumentError, "axis 0 of a has two names"),
    ((wf.ones(2),) * 2, {"input_names": 3}, ArgumentTypeError, "input_names must be a list"),
    ((wf.ones(2),) * 2, {"output_names": 3}, ArgumentTypeError, "output_names must be a list"),
    ((wf.ones(2),) * 2, {"output_names": [3]}, ArgumentTypeError, "output_names must be a list"),
    ((wf.ones(2),) * 2, {"output_names": [""]}, ArgumentTypeError, "output_names must be a list"),
    ((wf.ones(2),) * 2, {"metadata": ["a"]}, ArgumentTypeError, "metadata must be a dictionary"),
    ((wf.ones(2),) * 2, {"metadata": {"a": object()}}, ArgumentTypeError, "metadata must be a dictionary"),
    ((wf.ones(2),) * 2, {"metadata": {3: "a"}}, ArgumentTypeError, "the keys of metadata must be texts"),
])  # fmt: skip
def test_wrong_arguments_are_named(path, examples, options, kind, words):
    with pytest.raises(kind, match=words):
        export(lambda a, b: a + b, examples, path, **options)


@pytest.mark.parametrize(("wrong", "kind"), [
    (None, ArgumentTypeError), (3, ArgumentTypeError), (b"m", ArgumentTypeError), ("", ArgumentError),
    ("a\0b", ArgumentError),
])  # fmt: skip
def test_wrong_paths_are_named(wrong, kind):
    with pytest.raises(kind, match="path"):
        export(lambda x: x, (wf.ones(2),), wrong)


def times(x, n):
    for _ in range(int(n)):
        x = x + 1
    return x


@pytest.mark.parametrize(("function", "examples", "words"), [
    (times, (wf.ones(2), wf.tensor(3)), "a loop that runs so often is wf.while_loop"),
    (lambda x: x[x > 0], (wf.ones(2),), r"how many elements there are .*wf\.where"),
    (lambda x: x if x.sum() > 0 else x[0], [(wf.ones(2),), (-wf.ones(2),)], "float32 of 0 dimensions and float32 of 1"),
    (lambda x: wf.while_loop(lambda v: False, lambda v: v, (x,)), (wf.ones(2),), "cond_fn must give one tensor"),
])  # fmt: skip
def test_refusals_say_what_to_do(path, function, examples, words):
    with pytest.raises(wf.errors.WayfareError, match=words) as caught:
        export(function, examples, path)
    assert str(caught.value).count("test_export_hostile.py:") == 1


def test_an_assert_is_refused_with_what_to_do(path):
    def f(x):
        assert x.sum() > -100
        return x

    with pytest.raises(ExportError, match="A file cannot raise: take the assert out"):
        export(f, (wf.ones(2),), path)


def test_scan_and_levels_with_wrong_arguments():
    with pytest.raises(wf.errors.ShapeError, match="one size in dimension 7"):
        wf.scan(lambda c, x: (c, x), wf.ones(2), wf.ones(3, 2), dim=7)
    with pytest.raises(ArgumentError, match=r"wf\.tensor\(0\) counts"):
        wf.while_loop(lambda v, i: i < 3, lambda v, i: (v, i + 1), (wf.ones(2), 0))
    with pytest.raises(ArgumentTypeError, match=r"takes what levels\(\) gives, not int"):
        wf.onnx.over_levels(3, leaf=abs, node=abs)


def test_children_that_are_made_anew_each_time():
    arrays = wf.onnx.levels(5, children=lambda n: [n * 1000 + 7, n * 1000 + 8] if n < 10**6 else [], value=float)
    assert arrays.values.shape == (4,) and arrays.children.shape == (2, 2, 2)
