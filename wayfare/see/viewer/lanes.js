// The view of what a map ran together: the examples side by side as lanes, the groups as rows in order of time, and why
// two calls did not merge.

const LANE_ROW = 26;
const LANE_LABEL = 250;

const nodesBetween = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

class Lanes {
  constructor(app) {
    this.app = app;
    this.data = app.batching;
    this.panel = byId("panel-batching");
    this.picked = [];
    this.chosen = -1;
  }

  show() {
    this.side = make("aside", { class: "side", "aria-label": "Details of the group", "aria-live": "polite" });
    this.rows = make("div", { class: "lanes" });
    this.scroller = make(
      "div",
      {
        class: "scroller",
        tabindex: 0,
        role: "application",
        "aria-label": "Groups in order of time. Arrow up and down choose a group.",
      },
      this.heads(),
      this.rows,
    );
    this.rows.style.height = `${this.data.groups.length * LANE_ROW}px`;
    this.scroller.addEventListener("scroll", () => this.drawRows());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    const average = this.data.groups.length ? this.data.count / this.data.groups.length : 0;
    this.panel.replaceChildren(
      make(
        "div",
        { class: "lanes-view" },
        make(
          "p",
          { class: "sums" },
          make("b", {}, plural(this.data.examples, "example")),
          " · ",
          plural(this.data.count, "call"),
          " → ",
          make("b", {}, plural(this.data.groups.length, "group")),
          make("span", { class: "quiet" }, ` · ${average.toFixed(1)} calls in a group`),
        ),
        this.scroller,
      ),
      this.side,
    );
    this.fillSide();
    this.drawRows();
  }

  laneWidth() {
    const room = (this.scroller ? this.scroller.clientWidth : 800) - LANE_LABEL - 20;
    return clamp(Math.floor(room / Math.max(this.data.examples, 1)), 7, 44);
  }

  heads() {
    this.head = make("div", { class: "heads" });
    return this.head;
  }

  drawHeads(wide) {
    const every = Math.ceil(26 / wide);
    const marks = [];
    for (let example = 0; example < this.data.examples; example += every)
      marks.push(draw("text", { x: (example + 0.5) * wide, y: 15 }, example));
    this.head.replaceChildren(
      make("span", { class: "label" }, "group · example →"),
      draw("svg", { width: this.data.examples * wide, height: 22 }, marks),
    );
  }

  drawRows() {
    const wide = this.laneWidth();
    if (wide !== this.drawnWide) {
      this.drawHeads(wide);
      this.drawnWide = wide;
    }
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / LANE_ROW) - 4);
    const last = Math.min(this.data.groups.length, first + Math.ceil(this.scroller.clientHeight / LANE_ROW) + 8);
    const rows = [];
    for (let group = first; group < last; group += 1) rows.push(this.row(group, wide));
    this.rows.replaceChildren(...rows);
    this.drawnWide = wide;
  }

  row(index, wide) {
    const group = this.data.groups[index];
    const name = this.data.words(group.name);
    const label = button(
      [
        make("span", { class: "id" }, index),
        make("b", {}, shortened(name || "group", 22)),
        make("span", { class: "quiet" }, `×${group.size ?? this.data.members[index].length}`),
      ],
      () => this.choose(index),
      { class: "label", tabindex: -1, "aria-pressed": String(index === this.chosen), title: name },
    );
    const width = this.data.examples * wide;
    const lane = draw("svg", {
      width,
      height: LANE_ROW,
      class: `lane colour-${this.data.colour.get(this.data.kindOf(group))}`,
      on: { click: (event) => this.pickAt(event, index, wide) },
    });
    lane.append(draw("line", { x1: 0, x2: width, y1: LANE_ROW - 0.5, y2: LANE_ROW - 0.5 }));
    lane.append(...this.cells(index, wide));
    return make(
      "div",
      {
        class: index === this.chosen ? "lane-row chosen" : "lane-row",
        "data-group": index,
        style: { top: `${index * LANE_ROW}px`, width: `${width + LANE_LABEL}px` },
      },
      label,
      lane,
    );
  }

  // All cells of a row are one path; a bar joins them, since they ran as one.
  cells(index, wide) {
    const counts = new Map();
    for (const call of this.data.members[index])
      counts.set(this.data.cell("example", call), (counts.get(this.data.cell("example", call)) || 0) + 1);
    const examples = [...counts.keys()].filter(Number.isInteger).sort((a, b) => a - b);
    if (!examples.length) return [];
    const [inset, tall] = [wide > 12 ? 2 : 1, LANE_ROW - 10];
    const side = wide - 2 * inset;
    const made = [
      draw("line", {
        class: "join",
        x1: (examples[0] + 0.5) * wide,
        x2: (examples[examples.length - 1] + 0.5) * wide,
        y1: LANE_ROW / 2,
        y2: LANE_ROW / 2,
      }),
      draw("path", {
        class: "cells",
        d: examples.map((example) => `M${example * wide + inset},5h${side}v${tall}h${-side}z`).join(""),
      }),
    ];
    if (wide >= 16)
      for (const [example, count] of counts)
        if (count > 1) made.push(draw("text", { class: "several", x: (example + 0.5) * wide, y: 17 }, count));
    this.picked.forEach((call, order) => {
      if (this.data.cell("group", call) !== index) return;
      const x = (this.data.cell("example", call) + 0.5) * wide;
      made.push(
        draw("circle", { class: "pick", cx: x, cy: LANE_ROW / 2, r: 9 }),
        draw("text", { class: "pick", x, y: LANE_ROW / 2 + 4 }, "AB"[order]),
      );
    });
    return made;
  }

  pickAt(event, index, wide) {
    const box = event.currentTarget.getBoundingClientRect();
    const example = Math.floor((event.clientX - box.left) / wide);
    const call = this.data.members[index].find((member) => this.data.cell("example", member) === example);
    this.chosen = index;
    if (call === undefined) this.redraw();
    else this.pick(call);
  }

  pick(call) {
    if (this.picked.includes(call)) this.picked = this.picked.filter((other) => other !== call);
    else this.picked = this.picked.length === 2 ? [call] : [...this.picked, call];
    this.redraw();
  }

  choose(index) {
    this.chosen = this.chosen === index ? -1 : index;
    this.redraw();
  }

  redraw() {
    this.drawRows();
    this.fillSide();
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    this.chosen = clamp(this.chosen + by, 0, this.data.groups.length - 1);
    const top = this.chosen * LANE_ROW;
    if (top < this.scroller.scrollTop || top + 2 * LANE_ROW > this.scroller.scrollTop + this.scroller.clientHeight)
      this.scroller.scrollTop = top - this.scroller.clientHeight / 2;
    this.redraw();
  }

  fillSide() {
    this.side.replaceChildren(
      ...[this.pickSection(), this.chosen >= 0 ? this.groupSection(this.chosen) : this.reasonSection()]
        .flat()
        .filter(Boolean),
    );
  }

  callText(call) {
    const site = this.app.run.siteAt(this.data.cell("site", call));
    return [
      make("b", {}, this.data.words(this.data.cell("name", call))),
      ` of example ${this.data.cell("example", call)}`,
      make("span", { class: "quiet" }, ` ${this.data.shape(call)}${site ? ` ${site.name}:${site.line}` : ""}`),
    ];
  }

  pickSection() {
    if (!this.picked.length)
      return make("p", { class: "hint" }, "Click two cells to see why they did, or did not, run together.");
    return make(
      "section",
      { class: "why" },
      make("h3", {}, this.picked.length === 2 ? "Together?" : "One more cell"),
      this.picked.map((call, order) =>
        make("p", {}, make("span", { class: "letter" }, "AB"[order]), this.callText(call)),
      ),
      this.picked.length === 2 ? make("p", { class: "answer" }, this.data.why(...this.picked)) : null,
      button("Forget", () => {
        this.picked = [];
        this.redraw();
      }),
    );
  }

  groupSection(index) {
    const group = this.data.groups[index];
    const members = this.data.members[index];
    const from = new Set(
      members
        .flatMap((call) => listOf(this.data.cell("inputs", call)).map((input) => this.data.cell("group", input)))
        .filter((other) => other !== index && this.data.groups[other]),
    );
    const facts = [
      ["calls", group.size ?? members.length],
      ["round", group.round],
      ["shape", Array.isArray(group.rows) ? `[${group.rows.join(",")}]` : this.data.words(group.rows)],
      ["map", this.data.sessions > 1 ? group.session : ""],
    ].filter(([, value]) => value !== undefined && value !== null && value !== "");
    return [
      make(
        "section",
        {},
        make("h3", {}, `Group ${index}: ${this.data.words(group.name)}`),
        this.app.details.facts(facts.map(([name, value]) => [name, String(value)])),
        this.app.run.has(group.node)
          ? button("Show in the graph", () =>
              this.app.highlight(new Set(nodesBetween(group.from, group.node)), `group ${index}`),
            )
          : null,
      ),
      from.size
        ? make(
            "section",
            {},
            make("h3", {}, "Needs"),
            make(
              "ul",
              { class: "links" },
              [...from].slice(0, 12).map((other) =>
                make(
                  "li",
                  {},
                  button(
                    [
                      make("span", { class: "id" }, other),
                      make("b", {}, this.data.words(this.data.groups[other].name)),
                      make("span", { class: "quiet" }, `×${this.data.groups[other].size ?? ""}`),
                    ],
                    () => this.choose(other),
                    { class: "link" },
                  ),
                ),
              ),
            ),
          )
        : null,
      make(
        "section",
        {},
        make("h3", {}, "Members", make("span", { class: "quiet" }, String(members.length))),
        make(
          "ul",
          { class: "links" },
          members.slice(0, 60).map((call) =>
            make(
              "li",
              {},
              button(this.callText(call), () => this.pick(call), { class: "link", title: "Pick this call" }),
            ),
          ),
        ),
        members.length > 60 ? make("p", { class: "quiet" }, `and ${members.length - 60} more`) : null,
      ),
    ];
  }

  reasonSection() {
    const counts = new Map();
    for (const { reason } of this.data.apart) counts.set(reason, (counts.get(reason) || 0) + 1);
    const facts = Object.entries(this.data.stats).filter(
      ([, value]) => typeof value === "number" || typeof value === "string",
    );
    return [
      counts.size
        ? make(
            "section",
            {},
            make("h3", {}, "Why groups stayed apart"),
            make(
              "ul",
              { class: "reasons" },
              [...counts]
                .sort((a, b) => b[1] - a[1])
                .slice(0, 12)
                .map(([reason, count]) => make("li", {}, make("b", {}, `${count}×`), ` ${reason}`)),
            ),
          )
        : null,
      facts.length
        ? make(
            "section",
            {},
            make("h3", {}, "In numbers"),
            this.app.details.facts(
              facts.map(([name, value]) => [
                name.replace(/_/g, " "),
                typeof value === "number" ? numberText(value) : value,
              ]),
            ),
          )
        : null,
    ];
  }
}
