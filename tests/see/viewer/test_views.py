"""The other views in a real browser: timeline, batching, plans, difference, source; and runs of every size."""

import html

import pytest

import wayfare as wf
from tests.see.viewer import documents
from wayfare.see.viewer import page


def test_the_timeline_shows_the_peak_and_leads_to_a_step(show):
    viewer = show(documents.recurrent(37))
    viewer.click("#tab-timeline")
    assert "the peak" in viewer.text("#panel-timeline .readout")
    assert "peak 311 KB" in viewer.text("#panel-timeline .chart")
    viewer.click("#panel-timeline .chart", position={"x": 400, "y": 100})
    assert viewer.is_visible("#panel-graph")
    assert 100 < viewer.evaluate("wayfareView.steps.at") < 300


def test_lanes_show_examples_side_by_side_and_groups_in_rows(show):
    viewer = show(documents.batched(16))
    viewer.click("#tab-batching")
    assert "16 examples · 94 calls → 7 groups" in viewer.text("#panel-batching .sums")
    assert viewer.count(".lane-row") == 7
    # One closed stretch of the path for each example in the group.
    paths = [path.get_attribute("d") for path in viewer.locator(".lane .cells").all()]
    assert [path.count("M") for path in paths] == [16, 16, 12, 9, 6, 3, 16]
    viewer.click("[data-group='2'] button")
    assert "Group 2: compose" in viewer.text("#panel-batching .side")
    assert viewer.count("#panel-batching .side li button") == 12 + 2
    viewer.focus(".scroller")
    viewer.press("ArrowDown")
    assert "Group 3: compose" in viewer.text("#panel-batching .side")
    viewer.click("text=Show in the graph")
    assert viewer.is_visible("#panel-graph")
    assert viewer.count("#graph .lit") == 1


def pick(viewer, group, example):
    lane = viewer.locator(f"[data-group='{group}'] svg")
    wide = lane.bounding_box()["width"] / 16
    lane.click(position={"x": (example + 0.5) * wide, "y": 13})


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ((1, 3), (1, 5), "They ran together, in group 1."),
        ((0, 0), (1, 0), "Apart: they wait for each other"),  # as recorded
        ((1, 4), (2, 4), "Apart: one of them needs the result of the other."),
        ((2, 4), (6, 4), "Apart: they call different functions, compose and readout."),
        ((2, 4), (3, 3), "Apart: they were ready at different times, at depth 2 and 3."),
    ],
)
def test_two_picked_calls_are_told_why(show, one, other, answer):
    viewer = show(documents.batched(16))
    viewer.click("#tab-batching")
    pick(viewer, *one)
    assert "One more cell" in viewer.text("#panel-batching .side")
    pick(viewer, *other)
    assert viewer.text("#panel-batching .answer") == answer
    viewer.click("text=Forget")
    assert viewer.count("#panel-batching .answer") == 0


def test_many_groups_draw_only_the_rows_in_sight(show):
    document = documents.batched(16)
    batching = document["batching"]
    batching["groups"] *= 3000
    viewer = show(document)
    viewer.click("#tab-batching")
    assert viewer.count(".lane-row") < 60
    viewer.evaluate("document.querySelector('.scroller').scrollTop = 26 * 15000")
    viewer.wait_for_selector("[data-group='15000']")
    assert viewer.count(".lane-row") < 60


def test_a_kernel_shows_its_nodes(show):
    viewer = show(documents.layered(4))
    viewer.click("#tab-plans")
    assert "gelu_kernel" in viewer.text("#panel-plans")
    assert "1 path · 12 hits" in viewer.text("#panel-plans")
    viewer.click(".kernel")
    assert viewer.is_visible("#panel-graph")
    assert viewer.evaluate("wayfareView.lit.size") == 4
    assert viewer.count("#graph .lit") == 1
    assert "gelu_kernel" in viewer.text("#details")


def test_the_source_counts_what_each_line_made(show):
    viewer = show(documents.small())
    viewer.click("#tab-source")
    row = viewer.locator("table.source tr", has_text="loss = ((p - y) ** 2).mean()")
    assert row.locator("td").nth(2).inner_text().strip() == "3"
    assert viewer.count("table.source .diamond") == 1
    row.locator("button").click()
    assert viewer.count("#graph .lit") == 3


def test_a_difference_marks_nodes_and_the_boxes_around_them(show):
    document = documents.recurrent(37)
    document["diff"] = {
        "same": [0, 1], "added": [20, 21], "removed": [30], "changed": [[2, 2, "shape [8,37,16] → [8,40,16]"]],
        "summary": ["3 nodes more"],
    }  # fmt: skip
    viewer = show(document)
    assert viewer.text("#graph [data-kind=repeat] .difference") == "+2 −1"
    viewer.click("#tab-diff")
    assert "3 nodes more" in viewer.text("#panel-diff")
    assert "shape [8,37,16] → [8,40,16]" in viewer.text("#panel-diff")
    viewer.click("#panel-diff .added >> text=Show in the graph")
    assert viewer.count("#graph .item.added") == 2


def test_tabs_without_data_are_not_there(show):
    assert show(documents.small()).locator("[role=tab]").all_inner_texts() == ["Graph", "Timeline", "Source"]


def test_a_nan_is_named_first_and_marked(show):
    document = documents.recurrent(37)
    document["stats"].append([None, None, None, None, 3, 0, 0, [], None, None])
    for node in (60, 100):
        document["nodes"]["stats"][node] = len(document["stats"]) - 1
    viewer = show(document)
    assert viewer.count("#graph [data-kind=repeat] .bad") == 1
    assert viewer.text("#details .warning .id") == "%60"
    viewer.click("#details .warning button")
    assert viewer.count("#graph [data-key=n60] .bad") == 1
    assert "3 NaN" in viewer.text("#details")


def test_outputs_of_one_op_are_one_box(show):
    document = documents.small()
    document["nodes"]["out"][6] = 1
    document["nodes"]["op"][6] = document["nodes"]["op"][5]
    viewer = show(document)
    assert viewer.count("#graph .item") == 10
    assert "f32[2] +1" in viewer.text("[data-key=n5]")
    viewer.click("[data-key=n5]")
    viewer.click("#details .link[data-node='6']")
    assert "%6" in viewer.text("#details h2")
    assert viewer.count("#graph [data-key=n5].chosen") == 1


@pytest.mark.parametrize("make", [documents.chain, documents.tangle])
def test_fifty_thousand_nodes_open_folded(show, make):
    viewer = show(make(50_000))
    assert viewer.elements() < 700
    assert viewer.count("#graph .item") <= 90
    for _ in range(6):
        viewer.press("e")
    assert viewer.elements() < 12_000
    viewer.press("c")
    viewer.fill("#query", "%41234")
    viewer.until("wayfareView.search.matches.length === 1")
    viewer.press("Enter")
    assert viewer.count("#graph [data-key=n41234].chosen") == 1
    assert viewer.elements() < 2_000
    viewer.press("Escape", "End", "ArrowLeft")
    assert "▲ backward" in viewer.text("#now")


def test_a_module_that_calls_itself_a_thousand_deep_opens(show):
    made = documents.Document("deep")
    module = made.module("tree", "Tree")
    call, last = -1, made.add("leaf", shape=(2,), kind=1, name="w")
    for level in range(1000):
        call = made.call(module, call, level)
        last = made.add("tanh", (last,), (2,), 3, call)
    viewer = show(made.backward())
    assert viewer.elements() < 2000
    viewer.fill("#query", "%900")
    viewer.press("Enter")
    assert viewer.text("#details h2") == "tanh%900"


@pytest.mark.parametrize(
    "word", ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!-- \"'`&lt; {{document}}"]
)
def test_hostile_names_are_only_shown(show, word):
    viewer = show(documents.hostile(word))
    viewer.evaluate("() => { window.alert = () => { throw new Error('ran') } }")
    assert viewer.text("#title").strip() == word.strip()
    for tab in viewer.locator("[role=tab]").all():
        tab.click()
        assert viewer.count("main script, main img") == 0
    viewer.press("1")
    viewer.focus("#graph")
    viewer.press("ArrowRight", "ArrowRight", "ArrowRight")
    viewer.click("[data-key=n1]")
    assert word.strip() in viewer.text("#details h2")


WHOLE = documents.hostile("name")
PARTS = [[key] for key in WHOLE if key != "format"]
PARTS += [[outer, key] for outer in ("nodes", "batching", "diff") for key in WHOLE[outer]]
PARTS += [["batching", "calls", key] for key in WHOLE["batching"]["calls"]]

# Shows the document with one part replaced by each of several odd things, and walks through all that can be opened.
SHOW_ODD = """([whole, path]) => {
  for (const odd of [undefined, "text", [null], [-1, 99, [null]], {}]) {
    const changed = structuredClone(whole);
    const inner = path.slice(0, -1).reduce((part, key) => part[key], changed);
    inner[path.at(-1)] = odd;
    const graph = document.getElementById("graph");
    graph.replaceWith(graph.cloneNode(false));
    try {
      const view = new wayfareView.constructor(new wayfareView.run.constructor(changed));
      for (const name of Object.keys(view.views)) view.openTab(name);
      const lanes = view.views.batching;
      for (let group = 0; lanes && group < lanes.data.groups.length; group += 1) lanes.choose(group);
      for (let call = 0; lanes && call < lanes.data.count; call += 1) lanes.pick(call);
      view.openTab("graph");
      for (let step = 0; step <= view.steps.events.length; step += 1) view.steps.go(step);
      for (let node = 0; node < view.run.count; node += 1) view.goTo(node);
      for (const group of view.groups.walk()) view.select(group);
    } catch (error) { return `${JSON.stringify(odd)}: ${error.stack}`; }
  }
  return null;
}"""


def test_missing_and_odd_parts_are_shown_as_far_as_they_go(show):
    viewer = show(WHOLE)
    for path in PARTS:
        wrong = viewer.evaluate(SHOW_ODD, [WHOLE, path])
        assert wrong is None, (path, wrong)


def test_unknown_keys_and_another_version_are_survived(show):
    document = documents.small() | {"version": 7, "unheard": {"of": [1, 2]}}
    document["nodes"]["mood"] = ["fine"] * 11
    viewer = show(document)
    assert "version 7" in viewer.text("#notice")
    assert viewer.count("#graph .item") == 11


def test_a_run_that_ended_with_an_error_says_where(show):
    document = documents.small()
    document |= {"ended": {"error": "ShapeError: inner sizes differ", "site": 0}, "left_out": 12}
    viewer = show(document)
    assert "The run ended with an error at train.py:5: ShapeError: inner sizes differ" in viewer.text("#notice")
    assert "12 nodes are not shown: the recording has a limit." in viewer.text("#notice")


def test_an_empty_run_says_so(show):
    viewer = show({"format": "wayfare-run", "version": 1})
    assert "There are no nodes in this run." in viewer.text("#details")
    viewer.press("ArrowRight", "ArrowDown", "e", "c", "f", "End", " ")
    assert not viewer.is_visible("#steps")


def test_inside_a_sandboxed_frame_it_works_too(tmp_path, browser):
    holder = tmp_path / "holder.html"
    inner = html.escape(page(documents.small()))
    frame = f'<iframe srcdoc="{inner}" sandbox="allow-scripts" width="1200" height="700"></iframe>'
    holder.write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
    window = browser.new_context()
    outside = window.new_page()
    complaints = []
    outside.on("pageerror", lambda error: complaints.append(str(error)))
    outside.goto(holder.as_uri())
    inside = outside.frame_locator("iframe")
    inside.locator("[data-key=n4]").click()
    assert inside.locator("#details h2").inner_text().startswith("matmul")
    inside.locator("#theme").click()
    assert complaints == []
    window.close()


def test_a_recorded_run_is_shown_whole(show):
    """What the recorder writes is what the viewer reads: modules, values, gradients, lines, decisions, groups."""
    net = wf.nn.Sequential(wf.nn.Linear(2, 3), wf.nn.Tanh(), wf.nn.Linear(3, 1))
    with wf.debug.record(module=net) as run:
        losses = wf.map(lambda x: (net(x) ** 2).sum(), [wf.randn(2) for _ in range(5)])
        total = wf.stack(losses).sum()
        if total > -1:
            total.backward()
    viewer = show(run.document())
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= viewer.titles()
    assert viewer.count("#graph path.decision") == 1
    viewer.fill("#query", "parameter")
    viewer.press("Enter")
    assert "Gradient" in viewer.text("#details")
    viewer.press("Escape", "ArrowRight")
    assert viewer.text("#details .here .text").strip().startswith("losses = wf.map(")
    viewer.press("End")
    assert "▲ gradient kept" in viewer.text("#now")
    viewer.click("#tab-batching")
    assert "5 examples" in viewer.text("#panel-batching .sums")
