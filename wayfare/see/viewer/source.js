// The user's program, line by line, with what each line made: nodes, bytes, decisions.

class Source {
  constructor(app) {
    this.app = app;
    this.panel = byId("panel-source");
  }

  static has(run) {
    return listOf(run.raw.files).length > 0;
  }

  // Per file and line: the nodes made there and the decisions taken there.
  collect() {
    const { run } = this.app;
    const lines = new Map();
    const at = (site) => {
      const key = `${site.file}:${site.line}`;
      if (!lines.has(key)) lines.set(key, { nodes: [], bytes: 0, saved: 0, decisions: 0 });
      return lines.get(key);
    };
    for (let node = 0; node < run.count; node += 1) {
      const site = run.kind(node) === OP ? run.site(node) : null;
      if (!site) continue;
      const line = at(site);
      line.nodes.push(node);
      line.bytes += run.cell("bytes", node, 0);
      line.saved += run.cell("saved", node, 0);
    }
    for (const decisions of run.decisions.values()) {
      for (const decision of decisions) {
        const site = run.siteAt(decision.site);
        if (site) at(site).decisions += 1;
      }
    }
    return lines;
  }

  show() {
    const lines = this.collect();
    const now = this.app.steps.current();
    const here = now && now.node >= 0 ? this.app.run.site(now.node) : null;
    const most = Math.max(1, ...[...lines.values()].map((line) => line.nodes.length));
    const files = listOf(this.app.run.raw.files).map((file, index) => this.file(file || {}, index, lines, most, here));
    this.panel.replaceChildren(
      make(
        "div",
        { class: "sheet" },
        make("h2", {}, "Source"),
        make(
          "p",
          { class: "quiet" },
          "The lines that made nodes, and those around them. A line opens its nodes in the graph.",
        ),
        files,
      ),
    );
    const marked = this.panel.querySelector(".here");
    if (marked) marked.scrollIntoView({ block: "center" });
  }

  file(file, index, lines, most, here) {
    const code = file.code && typeof file.code === "object" ? file.code : {};
    const numbers = Object.keys(code)
      .map(Number)
      .filter(Number.isFinite)
      .sort((a, b) => a - b);
    const rows = [];
    numbers.forEach((number, position) => {
      if (position && number > numbers[position - 1] + 1)
        rows.push(make("tr", { class: "gap" }, make("td", { colspan: 5 }, "⋯")));
      rows.push(
        this.row(
          number,
          String(code[number]),
          lines.get(`${index}:${number}`),
          most,
          here && here.file === index && here.line === number,
        ),
      );
    });
    return make(
      "section",
      {},
      make("h3", {}, String(file.name ?? "?")),
      make(
        "table",
        { class: "source" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            ["line", "", "nodes", "bytes", "kept"].map((name) => make("th", {}, name)),
          ),
        ),
        make("tbody", {}, rows),
      ),
    );
  }

  row(number, text, line, most, here) {
    const count = line ? line.nodes.length : 0;
    const open = () => this.app.highlight(new Set(line.nodes), `line ${number}`);
    return make(
      "tr",
      { class: [count ? "used" : "", here ? "here" : ""].join(" ") },
      make(
        "td",
        { class: "number" },
        count ? button(String(number), open, { "aria-label": `Show the nodes of line ${number}` }) : String(number),
      ),
      make(
        "td",
        { class: "text" },
        make("code", {}, text || " "),
        line && line.decisions
          ? make("span", { class: "diamond", title: plural(line.decisions, "decision") }, "◆")
          : null,
      ),
      make(
        "td",
        { class: "right" },
        count ? [make("i", { class: "bar", style: { "--share": count / most } }), count.toLocaleString("en")] : "",
      ),
      make("td", { class: "right" }, count ? bytesText(line.bytes) : ""),
      make("td", { class: "right" }, count ? bytesText(line.saved) : ""),
    );
  }
}
