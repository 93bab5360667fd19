// What a map ran together, as data: the calls of all examples, the groups they merged into, why two did not merge.

const COLOURS = 7;

class Batching {
  constructor(app) {
    this.app = app;
    const raw = app.run.raw.batching || {};
    this.calls = raw.calls && typeof raw.calls === "object" ? raw.calls : {};
    this.groups = listOf(raw.groups).map((group) => this.readGroup(group || {}));
    this.count = listOf(this.calls.group).length;
    this.stats = raw.stats && typeof raw.stats === "object" ? raw.stats : {};
    this.sessions = new Set(this.groups.map((group) => group.session)).size;
    this.readMembers(raw);
    this.readReasons(raw);
  }

  static has(run) {
    const raw = run.raw.batching;
    return Boolean(raw && typeof raw === "object" && listOf(raw.groups).length);
  }

  words(value) {
    return typeof value === "number"
      ? this.app.run.text(value)
      : value === undefined || value === null
        ? ""
        : String(value);
  }

  // Which nodes of the graph a group is: a range, of which the last is its result.
  readGroup(group) {
    const [from, to] = listOf(group.nodes);
    const node = this.app.run.has(to - 1) && to > from ? to - 1 : group.node;
    return { ...group, node, from: Number.isInteger(from) ? from : node };
  }

  cell(column, call) {
    return listOf(this.calls[column])[call];
  }

  shape(call) {
    const shape = this.cell("shape", call);
    return Array.isArray(shape) ? `[${shape.join(",")}]` : this.words(shape);
  }

  readMembers(raw) {
    this.members = this.groups.map(() => []);
    let examples = Number.isInteger(raw.examples) ? raw.examples : 0;
    for (let call = 0; call < this.count; call += 1) {
      const group = this.cell("group", call);
      if (this.members[group]) this.members[group].push(call);
      const example = this.cell("example", call);
      if (Number.isInteger(example)) examples = Math.max(examples, example + 1);
    }
    this.examples = Math.min(examples, 4000);
    const kinds = [...new Set(this.groups.map((group) => this.kindOf(group)))];
    this.colour = new Map(kinds.map((kind, index) => [kind, index % COLOURS]));
  }

  // Groups of one kind have one colour: the same function with the same weights.
  kindOf(group) {
    return Number.isInteger(group.kind) ? `kind ${group.session} ${group.kind}` : this.words(group.name);
  }

  // A reason is known for two calls, and so for the groups that they stand for.
  readReasons(raw) {
    this.reasons = new Map();
    this.apart = listOf(raw.apart)
      .filter(Array.isArray)
      .map(([a, b, reason]) => ({ a: this.cell("group", a), b: this.cell("group", b), reason: this.words(reason) }));
    for (const { a, b, reason } of this.apart) this.reasons.set(a < b ? `${a} ${b}` : `${b} ${a}`, reason);
  }

  // What was recorded if it was; else what the two calls themselves tell.
  why(a, b) {
    const [first, second] = [this.cell("group", a), this.cell("group", b)];
    if (first === second) return `They ran together, in group ${first}.`;
    const known = this.reasons.get(first < second ? `${first} ${second}` : `${second} ${first}`);
    if (known) return `Apart: ${known}`;
    const [one, other] = [this.words(this.cell("name", a)), this.words(this.cell("name", b))];
    if (one !== other) return `Apart: they call different functions, ${one} and ${other}.`;
    if (this.needs(a, b) || this.needs(b, a)) return "Apart: one of them needs the result of the other.";
    const [shape, another] = [JSON.stringify(this.cell("shape", a)), JSON.stringify(this.cell("shape", b))];
    if (shape !== another) return `Apart: their shapes differ, ${this.shape(a)} and ${this.shape(b)}.`;
    const [depth, deeper] = [this.cell("depth", a), this.cell("depth", b)];
    if (depth !== deeper && Number.isInteger(depth))
      return `Apart: they were ready at different times, at depth ${depth} and ${deeper}.`;
    return "Apart: they were ready at different times.";
  }

  needs(late, early) {
    const seen = new Set([late]);
    const waiting = [late];
    while (waiting.length && seen.size < 50000) {
      for (const input of listOf(this.cell("inputs", waiting.pop()))) {
        if (input === early) return true;
        if (!seen.has(input)) {
          seen.add(input);
          waiting.push(input);
        }
      }
    }
    return false;
  }
}
