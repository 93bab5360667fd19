// Finding nodes by op, module, line, shape or name: "relu", "line:31", "encoder f32[8,3]", "%12".

const FIELDS = ["op", "module", "line", "shape", "name"];
const MOST_LISTED = 60;

class Search {
  constructor(app) {
    this.app = app;
    this.matches = [];
    this.matched = new Set();
    this.at = -1;
    this.input = byId("query");
    this.list = byId("matches");
    this.input.addEventListener("input", () => this.later());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("focus", () => (this.list.hidden = !this.matches.length));
    this.input.addEventListener("blur", () => setTimeout(() => (this.list.hidden = true), 150));
    byId("found-next").addEventListener("click", () => this.move(1));
    byId("found-previous").addEventListener("click", () => this.move(-1));
    this.say();
  }

  // Large runs are searched when the typing pauses.
  later() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.find(this.input.value), this.app.run.count > 5000 ? 180 : 0);
  }

  fields(node) {
    const { run } = this.app;
    const kind = run.kind(node);
    return {
      op: run.op(node),
      module: run.modulePath(node),
      line: run.place(node),
      shape: run.shape(node),
      name: `%${node} ${run.text(run.cell("name", node, -1))} ${{ [LEAF]: "parameter", [INPUT]: "input" }[kind] || ""}`,
    };
  }

  find(text) {
    this.sought = text;
    const terms = text
      .toLowerCase()
      .split(/\s+/)
      .filter(Boolean)
      .map((term) => {
        const [field, rest] = term.includes(":")
          ? [term.slice(0, term.indexOf(":")), term.slice(term.indexOf(":") + 1)]
          : ["", term];
        return FIELDS.includes(field) ? { field, word: rest } : { field: "", word: term };
      });
    this.matches = [];
    if (terms.length) {
      for (let node = 0; node < this.app.run.count; node += 1) if (this.fits(node, terms)) this.matches.push(node);
    }
    this.matched = new Set(this.matches.map((node) => this.app.run.primary[node]));
    this.at = -1;
    this.fillList();
    this.say();
    this.app.drawing.paint();
  }

  fits(node, terms) {
    const fields = this.fields(node);
    return terms.every(({ field, word }) => {
      if (field === "line" && /^\d+$/.test(word)) return fields.line.endsWith(`:${word}`);
      if (field) return fields[field].toLowerCase().includes(word);
      if (/^%\d+$/.test(word)) return word === `%${node}`;
      return FIELDS.some((name) => fields[name].toLowerCase().includes(word));
    });
  }

  fillList() {
    const { run } = this.app;
    const rows = this.matches.slice(0, MOST_LISTED).map((node, index) =>
      make(
        "button",
        {
          type: "button",
          role: "option",
          tabindex: -1,
          on: { mousedown: (event) => event.preventDefault(), click: () => this.choose(index) },
        },
        make("span", { class: "id" }, `%${node}`),
        make("b", {}, shortened(run.label(node), 36)),
        make("span", { class: "quiet" }, run.shape(node)),
        make("code", {}, run.place(node)),
      ),
    );
    if (this.matches.length > MOST_LISTED)
      rows.push(make("p", { class: "quiet" }, `and ${plural(this.matches.length - MOST_LISTED, "more", "more")}`));
    this.list.replaceChildren(...rows);
    this.list.hidden = !rows.length || document.activeElement !== this.input;
  }

  say() {
    const text = this.input.value.trim();
    const count = this.matches.length;
    byId("found").textContent = !text
      ? ""
      : !count
        ? "nothing found"
        : this.at < 0
          ? plural(count, "match", "matches")
          : `${this.at + 1} of ${count.toLocaleString("en")}`;
    byId("found-next").disabled = byId("found-previous").disabled = !count;
  }

  move(by) {
    if (!this.matches.length) return;
    this.choose(
      this.at < 0 && by < 0 ? this.matches.length - 1 : (this.at + by + this.matches.length) % this.matches.length,
    );
  }

  choose(index) {
    this.at = index;
    this.list.hidden = true;
    this.app.goTo(this.matches[index]);
    this.say();
  }

  key(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      clearTimeout(this.waiting);
      if (this.input.value !== this.sought) this.find(this.input.value);
      this.move(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      this.input.value = "";
      this.find("");
      byId("graph").focus();
    }
    event.stopPropagation();
  }
}
