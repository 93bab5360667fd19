// The pane beside the graph: all that is known of the node or the box that is selected.

class Details {
  constructor(app) {
    this.app = app;
    this.pane = byId("details");
  }

  show(selection) {
    const parts =
      selection === null
        ? this.overview()
        : typeof selection === "number"
          ? this.node(selection)
          : this.group(selection);
    this.pane.replaceChildren(...parts.flat(Infinity).filter(Boolean));
    this.pane.scrollTop = 0;
  }

  // A node as a button; `within` is a path that need not be said again.
  link(node, within) {
    const { run } = this.app;
    const name = run.label(node);
    const shown = within && name.startsWith(`${within}.`) ? name.slice(within.length + 1) : name;
    return button(
      [
        make("span", { class: "id" }, `%${node}`),
        make("b", {}, shortened(shown, 60)),
        make("span", { class: "quiet" }, run.shape(node)),
      ],
      () => this.app.goTo(node),
      { class: "link", "data-node": node },
    );
  }

  facts(rows) {
    return make(
      "dl",
      { class: "facts" },
      rows
        .filter(([, value]) => value !== "" && value !== null && value !== undefined)
        .map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
    );
  }

  crumbs(groups) {
    if (!groups.length) return null;
    return make(
      "nav",
      { class: "crumbs", "aria-label": "Boxes around the selection" },
      groups.flatMap((group, index) => [
        index ? make("span", { class: "quiet" }, "›") : null,
        button(group.label + (group.kind === "repeat" ? ` ×${group.times}` : ""), () => this.app.select(group), {
          class: "crumb",
        }),
      ]),
    );
  }

  node(node) {
    const { run, groups, plans, batching } = this.app;
    const site = run.site(node);
    const kind = run.kind(node);
    const name = run.text(run.cell("name", node, -1));
    const example = run.cell("example", node, -1);
    const output = run.cell("out", node, 0);
    return [
      this.crumbs(groups.chain(node)),
      make("h2", {}, run.label(node), make("span", { class: "id" }, `%${node}`)),
      make(
        "p",
        { class: "type" },
        run.shape(node),
        make("span", { class: "quiet" }, { [LEAF]: name ? "parameter" : "leaf", [INPUT]: "input" }[kind] || ""),
      ),
      this.decisions(node),
      site
        ? make(
            "section",
            { class: "where" },
            make(
              "h3",
              {},
              `${site.name}:${site.line}`,
              site.inside ? make("span", { class: "quiet" }, `in ${site.inside}`) : null,
            ),
            codeLines(site, 4),
          )
        : null,
      this.facts([
        ["module", run.modulePath(node)],
        ["example", example >= 0 ? String(example) : ""],
        ["attributes", run.text(run.cell("attrs", node, -1))],
        ["output", output > 0 ? `number ${output} of its op` : ""],
        ["size", bytesText(run.cell("bytes", node, NaN))],
        ["device", run.device(node)],
        ["kept for backward", kind === OP ? bytesText(run.cell("saved", node, NaN)) : ""],
        ["kernel", plans ? plans.kernelOf(node) : ""],
        ["difference", this.app.diff ? this.app.diff.describe(node) : ""],
      ]),
      this.links("Also gives", run.outputs.get(node) || []),
      numbersSection("Value", run.stats(node, "stats"), run.value(node, "value"), "forward"),
      numbersSection("Gradient", run.stats(node, "grad"), run.value(node, "gradvalue"), "backward"),
      this.links("Inputs", [...new Set(run.inputs[node])]),
      this.links("Used by", run.users(node)),
    ];
  }

  decisions(node) {
    const { run } = this.app;
    const found = run.decisions.get(node);
    if (!found) return null;
    return make(
      "section",
      { class: "decisions" },
      make("h3", {}, "Python looked at this value"),
      make(
        "ul",
        {},
        found.slice(0, 20).map((decision) => {
          const site = run.siteAt(decision.site);
          return make(
            "li",
            {},
            make("span", { class: "diamond", "aria-hidden": "true" }, "◆"),
            make("b", {}, decision.how),
            " gave ",
            make("code", {}, decision.outcome),
            site ? make("span", { class: "quiet" }, ` at ${site.name}:${site.line}`) : null,
          );
        }),
      ),
    );
  }

  links(heading, nodes, within) {
    const shown = nodes.slice(0, 12);
    if (!shown.length) return null;
    const list = make(
      "ul",
      { class: "links" },
      shown.map((node) => make("li", {}, this.link(node, within))),
    );
    const section = make(
      "section",
      {},
      make("h3", {}, heading, make("span", { class: "quiet" }, nodes.length > 1 ? String(nodes.length) : "")),
      list,
    );
    if (nodes.length > shown.length) {
      const more = button(
        `Show ${Math.min(nodes.length, 300) - shown.length} more`,
        () => {
          more.remove();
          list.append(...nodes.slice(shown.length, 300).map((node) => make("li", {}, this.link(node, within))));
        },
        { class: "more" },
      );
      section.append(more);
    }
    return section;
  }

  group(group) {
    const { run, groups } = this.app;
    const ops = new Map();
    const parameters = [];
    let [saved, size] = [0, 0];
    for (const node of groups.nodesIn(group)) {
      if (run.kind(node) === OP) ops.set(run.op(node), (ops.get(run.op(node)) || 0) + 1);
      else if (run.kind(node) === LEAF) parameters.push(node);
      saved += run.cell("saved", node, 0);
      if (run.kind(node) === OP) size += run.cell("bytes", node, 0);
    }
    const chain = [];
    for (let above = group.parent; above && above.parent; above = above.parent) chain.unshift(above);
    const repeat = group.kind === "repeat";
    return [
      this.crumbs(chain),
      make("h2", {}, group.label, repeat ? make("span", { class: "times" }, `×${group.times}`) : null),
      make(
        "p",
        { class: "type words quiet" },
        group.kind === "call"
          ? group.module
          : {
              repeat: "the same steps, many times",
              part: "a part of a long row",
              example: "one example of a map",
              unit: "one time of many",
            }[group.kind] || "",
        group.kind === "call" && group.number > 0 ? make("span", { class: "quiet" }, `call ${group.number + 1}`) : null,
      ),
      make(
        "div",
        { class: "actions" },
        button(group.open ? "Close" : "Open", () => this.app.toggle(group), { class: "main" }),
        repeat && group.times <= MOST_CHILDREN
          ? button(group.all && group.open ? "Show one" : "Show all", () => this.app.showAll(group))
          : null,
      ),
      repeat ? this.chooser(group) : null,
      this.facts([
        ["nodes", group.count.toLocaleString("en")],
        ["values", bytesText(size)],
        ["kept for backward", bytesText(saved)],
      ]),
      this.opBars(ops),
      this.links("Parameters", parameters, group.path),
    ];
  }

  chooser(group) {
    const label = make("output", {}, `${group.instance + 1} of ${group.times}`);
    const slider = make("input", {
      type: "range",
      min: 1,
      max: group.times,
      value: group.instance + 1,
      "aria-label": "Which instance",
      on: {
        input: () => (label.textContent = `${slider.value} of ${group.times}`),
        change: () => this.app.turn(group, Number(slider.value) - 1 - group.instance),
      },
    });
    return make("label", { class: "chooser" }, "instance", slider, label);
  }

  opBars(ops) {
    if (!ops.size) return null;
    const sorted = [...ops].sort((a, b) => b[1] - a[1]);
    const most = sorted[0][1];
    return make(
      "section",
      {},
      make("h3", {}, "Ops"),
      make(
        "ul",
        { class: "bars" },
        sorted
          .slice(0, 14)
          .map(([name, count]) =>
            make(
              "li",
              {},
              make("span", {}, name),
              make("i", { style: { "--share": count / most } }),
              make("span", {}, count.toLocaleString("en")),
            ),
          ),
      ),
      sorted.length > 14 ? make("p", { class: "quiet" }, `and ${plural(sorted.length - 14, "op")} more`) : null,
    );
  }

  overview() {
    const { run, groups } = this.app;
    const kinds = [0, 0, 0];
    let saved = 0;
    for (let node = 0; node < run.count; node += 1) {
      if (run.primary[node] === node) kinds[run.kind(node)] += 1;
      saved += run.cell("saved", node, 0);
    }
    const memory = listOf(run.raw.memory);
    const bad = run.firstBad();
    const looked = [...run.decisions.values()].reduce((sum, list) => sum + list.length, 0);
    const ops = new Map();
    for (const node of groups.nodesIn(groups.root))
      if (run.kind(node) === OP) ops.set(run.op(node), (ops.get(run.op(node)) || 0) + 1);
    return [
      make("h2", {}, "The run"),
      make(
        "p",
        { class: "quiet" },
        groups.root.count ? "Select a node or a box, or step with ← and →." : "There are no nodes in this run.",
      ),
      bad
        ? make(
            "section",
            { class: "warning" },
            make("h3", {}, `The first ${bad.what} that is not a number`),
            this.link(bad.node),
          )
        : null,
      this.facts([
        ["ops", kinds[OP].toLocaleString("en")],
        ["parameters", kinds[LEAF].toLocaleString("en")],
        ["inputs", kinds[INPUT] ? kinds[INPUT].toLocaleString("en") : ""],
        ["steps", run.events.length ? run.events.length.toLocaleString("en") : ""],
        ["decisions", looked ? String(looked) : ""],
        ["kept for backward", bytesText(saved)],
        ["peak memory", memory.length ? bytesText(memory.reduce((most, value) => Math.max(most, value || 0), 0)) : ""],
        ["recorded", run.raw.created ? String(run.raw.created).replace("T", " ").slice(0, 19) : ""],
        ["wayfare", run.raw.wayfare ? String(run.raw.wayfare) : ""],
      ]),
      this.app.diff ? this.app.diff.overview() : null,
      this.opBars(ops),
    ];
  }
}
