// Compiled plans (which nodes became which kernel) and the difference of two runs, both shown on the same graph.

class Plans {
  constructor(app) {
    this.app = app;
    this.panel = byId("panel-plans");
    this.plans = listOf(app.run.raw.plans).filter((plan) => plan && typeof plan === "object");
    this.kernels = new Map();
    for (const plan of this.plans)
      for (const kernel of listOf(plan.kernels))
        for (const node of listOf(kernel && kernel.nodes)) this.kernels.set(node, kernel);
  }

  static has(run) {
    return listOf(run.raw.plans).length > 0;
  }

  kernelOf(node) {
    const kernel = this.kernels.get(node);
    return kernel ? String(kernel.name) : "";
  }

  opName(op) {
    return typeof op === "number" ? this.app.run.text(op) : String(op);
  }

  show() {
    this.panel.replaceChildren(
      make(
        "div",
        { class: "sheet" },
        make("h2", {}, "Compiled plans"),
        make("p", { class: "quiet" }, "A kernel shows the nodes that it computes in one go."),
        this.plans.map((plan) => this.plan(plan)),
      ),
    );
  }

  plan(plan) {
    const facts = [];
    if (Number.isFinite(plan.paths)) facts.push(plural(plan.paths, "path"));
    if (Number.isFinite(plan.hits)) facts.push(plural(plan.hits, "hit"));
    const kernels = listOf(plan.kernels).filter((kernel) => kernel && typeof kernel === "object");
    return make(
      "section",
      { class: "plan" },
      make("h3", {}, String(plan.function ?? "a function"), make("span", { class: "quiet" }, facts.join(" · "))),
      kernels.length
        ? make(
            "ul",
            { class: "kernels" },
            kernels.map((kernel) => this.kernel(kernel)),
          )
        : make("p", { class: "quiet" }, "No kernel is known: the function has not been compiled in this run."),
      plan.text
        ? make("details", {}, make("summary", {}, "explain"), make("pre", { class: "plain" }, String(plan.text)))
        : null,
    );
  }

  kernel(kernel) {
    const nodes = listOf(kernel.nodes).filter((node) => this.app.run.has(node));
    const ops = listOf(kernel.ops).map((op) => this.opName(op));
    const open = () => this.app.highlight(new Set(nodes), `kernel ${kernel.name}`);
    return make(
      "li",
      {},
      button(
        [
          make("b", {}, String(kernel.name ?? "kernel")),
          make("span", { class: "quiet" }, plural(nodes.length, "node")),
        ],
        open,
        { class: "kernel", disabled: !nodes.length },
      ),
      make(
        "span",
        { class: "ops" },
        ops.slice(0, 16).map((op) => make("code", {}, op)),
        ops.length > 16 ? make("span", { class: "quiet" }, `and ${ops.length - 16} more`) : null,
      ),
    );
  }
}

const SIGNS = { added: "+", removed: "−", changed: "~" };

class Difference {
  constructor(app) {
    this.app = app;
    this.panel = byId("panel-diff");
    this.kinds = new Map();
    const diff = app.run.raw.diff;
    this.summary = listOf(diff.summary);
    for (const kind of ["added", "removed"])
      for (const node of listOf(diff[kind])) if (app.run.has(node)) this.kinds.set(node, { kind });
    for (const entry of listOf(diff.changed)) {
      const [before, after, what] = listOf(entry);
      const text = typeof what === "number" ? app.run.text(what) : String(what ?? "");
      for (const node of [before, after]) if (app.run.has(node)) this.kinds.set(node, { kind: "changed", what: text });
    }
    for (const group of app.groups.walk()) group.differences = { added: 0, removed: 0, changed: 0 };
    for (const [node, { kind }] of this.kinds) {
      for (let group = app.groups.home[node]; group; group = group.parent) group.differences[kind] += 1;
    }
  }

  static has(run) {
    return Boolean(run.raw.diff && typeof run.raw.diff === "object");
  }

  of(item) {
    return item.node >= 0 ? (this.kinds.get(item.node) || {}).kind : "";
  }

  sign(item) {
    if (item.node >= 0) return SIGNS[this.of(item)] || "";
    return Object.entries(SIGNS)
      .filter(([kind]) => item.group.differences[kind])
      .map(([kind, sign]) => `${sign}${item.group.differences[kind]}`)
      .join(" ");
  }

  overview() {
    if (!this.summary.length) return null;
    return make(
      "section",
      {},
      make("h3", {}, "What changed"),
      this.summary.map((line) => make("p", {}, String(line))),
    );
  }

  describe(node) {
    const found = this.kinds.get(node);
    return found ? [found.kind, found.what].filter(Boolean).join(": ") : "";
  }

  show() {
    const { run } = this.app;
    const lists = Object.keys(SIGNS).map((kind) => {
      const nodes = [...this.kinds].filter(([, found]) => found.kind === kind).map(([node]) => node);
      if (!nodes.length) return null;
      return make(
        "section",
        { class: `difference-list ${kind}` },
        make("h3", {}, `${SIGNS[kind]} ${kind}`, make("span", { class: "quiet" }, plural(nodes.length, "node"))),
        button("Show in the graph", () => this.app.highlight(new Set(nodes), `${kind} nodes`)),
        make(
          "ul",
          { class: "links" },
          nodes
            .slice(0, 100)
            .map((node) =>
              make(
                "li",
                {},
                this.app.details.link(node),
                make("code", {}, run.place(node)),
                make("span", { class: "quiet" }, (this.kinds.get(node) || {}).what || ""),
              ),
            ),
        ),
        nodes.length > 100 ? make("p", { class: "quiet" }, `and ${plural(nodes.length - 100, "node")} more`) : null,
      );
    });
    this.panel.replaceChildren(
      make(
        "div",
        { class: "sheet" },
        make("h2", {}, "What changed"),
        this.summary.map((line) => make("p", {}, String(line))),
        lists.some(Boolean) ? lists : make("p", {}, "The two graphs are the same."),
      ),
    );
  }
}
