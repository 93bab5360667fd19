"""The page in a real browser: clicking, stepping, folding, searching, by mouse and by keyboard."""

from tests.see.viewer import documents


def test_a_small_run_opens_whole(show):
    viewer = show(documents.small())
    assert viewer.text("#title") == "logistic regression, one step"
    assert viewer.count("#graph .item") == 11
    assert {"x", "w", "b", "y", "matmul", "sigmoid", "mean"} <= viewer.titles()
    assert viewer.text("#summary") == "11 nodes · 17 steps"


def test_every_edge_goes_down_and_no_two_cards_overlap(show):
    viewer = show(documents.layered(3))
    viewer.press("e", "e", "e")
    assert viewer.evaluate("wayfareView.drawing.graph.edges.length") > 30
    rising = "wayfareView.drawing.graph.edges.filter((e) => e.points[0][1] > e.points.at(-1)[1]).length"
    assert viewer.evaluate(rising) == 0
    overlapping = """() => {
      const cards = wayfareView.drawing.graph.items.filter((i) => !i.open);
      const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
      return cards.flatMap((a, i) => cards.slice(i + 1).filter((b) => meet(a, b))).length;
    }"""
    assert viewer.evaluate(overlapping) == 0
    outside = """() => wayfareView.drawing.graph.items.filter((i) => i.parent && (i.x < i.parent.x || i.y < i.parent.y
        || i.x + i.width > i.parent.x + i.parent.width || i.y + i.height > i.parent.y + i.parent.height)).length"""
    assert viewer.evaluate(outside) == 0


def test_a_click_shows_all_of_a_node(show):
    viewer = show(documents.small())
    viewer.click("[data-key=n1]")
    shown = viewer.text("#details")
    known = ["w", "%1", "f32[2]", "parameter", "train.py:5", "w = wf.randn(2, requires_grad=True)"]
    for expected in [*known, "Value", "Gradient", "−0.11", "min", "std"]:
        assert expected in shown
    assert viewer.text("#details .here .number") == "5"
    assert viewer.count("#details .histogram") == 2
    assert viewer.count("#details .backward .histogram rect") == 24
    assert "chosen" in viewer.get_attribute("[data-key=n1]", "class")
    viewer.click("[data-key=n8]")
    assert "exponent=2" in viewer.text("#details")


def test_a_small_run_has_its_numbers_on_the_cards(show):
    document = documents.small()
    document["nodes"]["name"][3] = -1
    document["nodes"]["shape"][3] = []
    document["nodes"]["value"][3] = len(document["values"])
    document["values"].append({"shape": [], "text": 3, "whole": True})
    viewer = show(document)
    assert viewer.text("[data-key=n4] .sub") == "f32[2] = [0.35, 0.58]"
    assert viewer.text("[data-key=n1] .sub") == "f32[2] = [0.3, −0.2]"
    assert viewer.text("[data-key=n1] .gradient") == "∂ [−0.11, 0.07]"
    assert (viewer.text("[data-key=n3] .title"), viewer.text("[data-key=n3] .sub")) == ("3", "f32[]")
    # A gradient comes into sight when backward has made it.
    viewer.press("ArrowRight")
    assert not viewer.is_visible("[data-key=n1] .gradient")
    viewer.press("End")
    assert viewer.is_visible("[data-key=n1] .gradient")


def test_inputs_and_users_are_links(show):
    viewer = show(documents.small())
    viewer.click("[data-key=n5]")
    assert [link.inner_text().split() for link in viewer.locator("#details .link").all()] == [
        ["%4", "matmul", "f32[2]"], ["%2", "b", "f32[]"], ["%6", "sigmoid", "f32[2]"],
    ]  # fmt: skip
    viewer.click("#details .link >> nth=2")
    assert viewer.text("#details h2").startswith("sigmoid")


def test_arrows_step_forward_through_a_decision_and_then_backward(show):
    viewer = show(documents.small())
    seen = []
    for _ in range(17):
        viewer.press("ArrowRight")
        now = viewer.locator("#graph .now")
        [phase] = {"forward", "backward", "decision"}.intersection(now.get_attribute("class").split())
        seen.append((now.get_attribute("data-key"), phase))
    assert [key for key, phase in seen if phase == "forward"] == ["n4", "n5", "n6", "n7", "n8", "n9", "n10"]
    assert seen[7] == ("n10", "decision")
    backward = [key for key, phase in seen if phase == "backward"]
    assert backward == ["n10", "n9", "n8", "n7", "n6", "n5", "n4", "n2", "n1"]
    assert "17 / 17" in viewer.text("#now")
    viewer.press("ArrowRight")
    assert "17 / 17" in viewer.text("#now")
    viewer.press("ArrowLeft", "ArrowLeft")
    assert "15 / 17" in viewer.text("#now")
    viewer.press("Home")
    assert viewer.count("#graph .now") == 0


def test_a_step_marks_line_node_and_edges_and_fades_what_is_to_come(show):
    viewer = show(documents.small())
    viewer.press("ArrowRight", "ArrowRight")
    assert viewer.text("#details .here .text") == "p = (h + b).sigmoid()"
    assert viewer.count("#graph .edge.forward") == 2
    assert viewer.count("#graph .item.future") == 5
    viewer.press("End")
    viewer.press("ArrowLeft", "ArrowLeft")
    assert viewer.count("#graph .edge.backward") == 2
    assert viewer.count("#graph .item.future") == 0
    assert viewer.count("#graph .item.graded") == 7
    assert viewer.text("#graph .flag") == "▲"


def test_slider_and_play_move_the_step(show):
    viewer = show(documents.small())
    viewer.locator("#slider").fill("8")
    assert "◆ decision" in viewer.text("#now")
    assert "if → True" in viewer.text("#now")
    assert viewer.get_attribute("#slider", "aria-valuetext") == "step 8 of 17, decision %10 gt"
    viewer.click("#step-first")
    viewer.click("#play")
    assert "Pause" in viewer.text("#play")
    viewer.until("wayfareView.steps.at >= 2")
    viewer.click("#play")
    assert "Play" in viewer.text("#play")


def test_decisions_are_marked_with_a_diamond_and_their_outcome(show):
    viewer = show(documents.small())
    assert viewer.count("#graph [data-key=n10] path.decision") == 1
    assert viewer.count("#graph path.decision") == 1
    viewer.click("[data-key=n10]")
    assert "if gave True at train.py:11" in viewer.text("#details .decisions")


def test_repeated_cells_fold_and_open_at_one_instance(show):
    viewer = show(documents.recurrent(37))
    assert viewer.count("#graph [data-kind=repeat]") == 1
    assert viewer.text("[data-kind=repeat] .badge") == "×37"
    viewer.click("[data-kind=repeat] [data-act=toggle]")
    assert "1 of 37" in viewer.text("#graph .instances")
    assert viewer.count("#graph [data-kind=part]") == 1
    viewer.click("#graph [data-act=later]")
    viewer.click("#graph [data-act=later]")
    assert "3 of 37" in viewer.text("#graph .instances")
    assert {part.text_content() for part in viewer.locator("#graph [data-kind=part] .sub").all()} == {"×2", "×34"}
    viewer.locator("#details .chooser input").fill("37")
    viewer.locator("#details .chooser input").dispatch_event("change")
    assert "37 of 37" in viewer.text("#graph .instances")
    viewer.click("text=Show all")
    assert "all 37" in viewer.text("#graph .instances")
    viewer.press("c")
    assert viewer.count("#graph .open-box") == 0


def test_stepping_turns_an_open_fold_to_the_instance_that_runs(show):
    viewer = show(documents.recurrent(37))
    viewer.click("[data-kind=repeat] [data-act=toggle]")
    for step, instance in ((20, 2), (200, 22), (60, 7)):
        viewer.locator("#slider").fill(str(step))
        assert f"{instance} of 37" in viewer.text("#graph .instances")


def test_equal_layers_fold_though_they_are_different_modules(show):
    viewer = show(documents.layered(12))
    assert "layers.0–11" in viewer.titles()
    assert viewer.text("[data-kind=repeat] .badge") == "×12"


def test_a_parameter_stands_in_the_box_of_what_uses_it(show):
    viewer = show(documents.recurrent(5))
    homes = viewer.evaluate("""() => {
      const { run, groups } = wayfareView;
      const leaves = [...Array(run.count).keys()].filter((node) => run.kind(node) === 1);
      return leaves.map((node) => [run.label(node), groups.home[node].label]);
    }""")
    assert dict(homes) == {
        "embed.weight": "embed", "cell.weight_ih": "Model", "cell.weight_hh": "Model",
        "head.weight": "head", "head.bias": "head",
    }  # fmt: skip


def test_boxes_collapse_and_expand(show):
    viewer = show(documents.recurrent(37))
    before = viewer.count("#graph .item")
    box = viewer.locator("#graph .open-box", has_text="head").last
    box.locator("[data-act=toggle]").click()
    assert viewer.count("#graph .item") == before - 3
    closed = viewer.locator("#graph .item.call", has_text="head")
    assert "Linear" in closed.text_content()
    closed.dblclick()
    assert viewer.count("#graph .item") == before
    assert viewer.text("#details h2") == "head"


def test_search_finds_op_module_line_shape_and_name(show):
    viewer = show(documents.recurrent(37))
    expected = {
        "tanh": 37, "cell": 298, "op:matmul": 75, "line:9": 37, "shape:[8,48]": 111, "name:weight": 4, "%12": 1,
        "matmul f32[8,10]": 1, "module:head": 2, "train.py:7": 111, "TANH": 37, "": 0, "   ": 0, "[(*": 0,
    }  # fmt: skip
    found = {}
    for query in expected:
        viewer.fill("#query", query)
        viewer.press("Enter")
        found[query] = viewer.evaluate("wayfareView.search.matches.length")
    assert found == expected
    viewer.fill("#query", "tanh")
    viewer.until("wayfareView.search.matches.length === 37")
    assert viewer.text("#found") == "37 matches"


def test_enter_goes_through_the_matches_and_opens_what_hides_them(show):
    viewer = show(documents.recurrent(37))
    viewer.press("/")
    viewer.keyboard.type("tanh")
    assert viewer.count("#matches button") == 37
    viewer.press("Enter")
    assert viewer.text("#found") == "1 of 37"
    assert viewer.text("#details h2").startswith("tanh")
    assert viewer.count("#graph .chosen.match") == 1
    viewer.press("Enter", "Enter")
    assert viewer.text("#found") == "3 of 37"
    assert "3 of 37" in viewer.text("#graph .instances")
    viewer.press("Shift+Enter")
    assert viewer.text("#found") == "2 of 37"
    viewer.press("Escape")
    assert viewer.text("#found") == ""
    viewer.fill("#query", "nothing like it")
    assert viewer.text("#found") == "nothing found"
    assert viewer.locator("#found-next").is_disabled()


def test_all_of_it_works_by_keyboard(show):
    viewer = show(documents.recurrent(37))
    viewer.press("ArrowDown")
    assert viewer.count("#graph .chosen") == 1
    viewer.press("Escape")
    assert viewer.count("#graph .chosen") == 0
    # To the fold of the cells, open it, and out again.
    viewer.fill("#query", "select")
    viewer.press("Enter", "Escape", "Backspace", "Backspace")
    assert viewer.text("#details h2").startswith("cell")
    viewer.press("Enter")
    assert viewer.count("#graph .instances") == 0
    viewer.press("Enter")
    assert viewer.count("#graph .instances") == 1
    scale = viewer.evaluate("wayfareView.drawing.camera.scale")
    viewer.press("+")
    assert viewer.evaluate("wayfareView.drawing.camera.scale") > scale
    viewer.press("-", "-")
    assert viewer.evaluate("wayfareView.drawing.camera.scale") < scale
    viewer.press("f", "2")
    assert viewer.is_visible("#panel-timeline")
    viewer.press("1")
    assert viewer.is_visible("#panel-graph")
    viewer.press("?")
    assert "step back and on" in viewer.text("#keys")
    viewer.press("Escape")
    assert not viewer.is_visible("#keys")
    viewer.focus("#tab-graph")
    viewer.press("ArrowRight")
    assert viewer.get_attribute("#tab-timeline", "aria-selected") == "true"


def test_every_control_has_a_name_and_focus_shows(show):
    viewer = show(documents.small())
    names = "[...document.querySelectorAll('button, input')].map((e) => e.ariaLabel || e.textContent.trim())"
    assert len(viewer.evaluate(names)) > 15
    assert all(viewer.evaluate(names))
    viewer.press("Tab")
    assert viewer.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_wheel_zooms_and_drag_pans_without_selecting(show):
    viewer = show(documents.small())
    viewer.mouse.move(400, 400)
    viewer.mouse.wheel(0, -300)
    viewer.until("wayfareView.drawing.camera.scale > 1.2")
    before = viewer.evaluate("[wayfareView.drawing.camera.x, wayfareView.drawing.camera.y]")
    viewer.mouse.move(100, 300)
    viewer.mouse.down()
    viewer.mouse.move(180, 330, steps=4)
    viewer.mouse.up()
    after = viewer.evaluate("[wayfareView.drawing.camera.x, wayfareView.drawing.camera.y]")
    assert [round(b - a) for a, b in zip(before, after, strict=True)] == [80, 30]
    assert viewer.count("#graph .chosen") == 0


def test_light_and_dark_follow_the_system_and_the_switch(show):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = show(documents.small(), color_scheme="light"), show(documents.small(), color_scheme="dark")
    colours = light.evaluate(background), dark.evaluate(background)
    assert colours[0] != colours[1]
    light.click("#theme")
    assert light.evaluate(background) == colours[1]
    # The browser passes a stored choice on to its next page a moment after the click, and a reload may be faster.
    for _ in range(40):
        light.reload()
        if light.evaluate(background) == colours[1]:
            break
        light.wait_for_timeout(50)
    assert light.evaluate(background) == colours[1]
    dark.press("t")
    assert dark.evaluate(background) == colours[0]


def test_nothing_is_wider_than_the_window(show):
    for document in (documents.small(), documents.layered(12), documents.batched(64)):
        viewer = show(document)
        for tab in viewer.locator("[role=tab]").all():
            tab.click()
            assert viewer.evaluate("document.documentElement.scrollWidth") <= 1280
