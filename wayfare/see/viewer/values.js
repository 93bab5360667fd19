// Numbers in the details: statistics with a histogram, values as a grid, lines of code.

function histogramPicture(stats) {
  const counts = stats.histogram.map((count) => (Number.isFinite(count) ? count : 0));
  const most = Math.max(...counts, 1);
  const [width, height] = [316, 64];
  const step = width / Math.max(counts.length, 1);
  const picture = draw("svg", {
    class: "histogram",
    viewBox: `0 0 ${width} ${height + 16}`,
    role: "img",
    "aria-label": `Histogram from ${numberText(stats.low)} to ${numberText(stats.high)}`,
  });
  counts.forEach((count, index) => {
    const tall = count ? Math.max((count / most) * height, 1.5) : 0;
    picture.append(
      draw(
        "rect",
        { x: index * step + 0.5, y: height - tall, width: Math.max(step - 1, 1), height: tall },
        draw("title", {}, plural(count, "value")),
      ),
    );
  });
  picture.append(
    draw("line", { x1: 0, x2: width, y1: height + 0.5, y2: height + 0.5 }),
    draw("text", { x: 0, y: height + 13 }, numberText(stats.low ?? stats.min)),
    draw("text", { x: width, y: height + 13, class: "end" }, numberText(stats.high ?? stats.max)),
  );
  const [low, high] = [stats.low ?? stats.min, stats.high ?? stats.max];
  if (low < 0 && high > 0) {
    const zero = (-low / (high - low)) * width;
    picture.append(draw("line", { class: "zero", x1: zero, x2: zero, y1: 0, y2: height + 4 }));
    if (zero > 50 && zero < width - 50) picture.append(draw("text", { x: zero, y: height + 13, class: "middle" }, "0"));
  }
  return picture;
}

function statisticsTable(stats) {
  const cells = [
    ["min", stats.min],
    ["mean", stats.mean],
    ["max", stats.max],
    ["std", stats.std],
  ];
  const table = make(
    "dl",
    { class: "numbers" },
    cells.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, numberText(value)))),
  );
  const notes = [];
  if (stats.nan) notes.push(make("b", { class: "alarm" }, `${stats.nan.toLocaleString("en")} NaN`));
  if (stats.inf) notes.push(make("b", { class: "alarm" }, `${stats.inf.toLocaleString("en")} infinite`));
  if (stats.zero) notes.push(make("span", {}, plural(stats.zero, "zero")));
  if (stats.looked > 0) notes.push(make("span", {}, `estimated from ${stats.looked.toLocaleString("en")} elements`));
  return [
    table,
    notes.length
      ? make(
          "p",
          { class: "counts" },
          notes.flatMap((note, index) => (index ? [" · ", note] : [note])),
        )
      : null,
  ];
}

// Statistics and value of one thing, a value or a gradient.
function numbersSection(heading, stats, value, kind) {
  if (!stats && !value) return null;
  if (value && value.whole !== false && ["number", "string", "boolean"].includes(typeof value.text)) {
    return make(
      "section",
      { class: kind },
      make("h3", {}, heading),
      make("p", { class: "scalar" }, numberText(value.text)),
    );
  }
  return make(
    "section",
    { class: kind },
    make("h3", {}, heading),
    stats ? statisticsTable(stats) : null,
    stats && stats.histogram.length > 1 ? histogramPicture(stats) : null,
    value ? valueGrid(value) : null,
  );
}

const GRID_ROWS = 8;
const GRID_COLUMNS = 8;

function valueGrid(value) {
  const whole =
    value.whole === false ? make("p", { class: "quiet" }, `corners of [${listOf(value.shape).join(", ")}]`) : null;
  const blocks = [];
  collectBlocks(value.text, [], blocks);
  const tables = blocks
    .slice(0, 4)
    .map(({ at, rows }) =>
      make(
        "div",
        { class: "grid" },
        at.length ? make("p", { class: "quiet" }, `[${at.join(", ")}]`) : null,
        gridTable(rows),
      ),
    );
  if (blocks.length > 4) tables.push(make("p", { class: "quiet" }, `… ${plural(blocks.length - 4, "block")} more`));
  return make("div", { class: "value" }, whole, tables);
}

// Nested lists as matrices, each with its place along the outer dimensions.
function collectBlocks(text, at, blocks) {
  if (!Array.isArray(text)) blocks.push({ at, rows: [[text]] });
  else if (!text.some(Array.isArray)) blocks.push({ at, rows: [text] });
  else if (text.every((row) => !Array.isArray(row) || !row.some(Array.isArray))) {
    blocks.push({ at, rows: text.map((row) => (Array.isArray(row) ? row : [row])) });
  } else if (blocks.length < 100)
    text.forEach((inner, index) => collectBlocks(inner, [...at, Array.isArray(inner) ? index : "…"], blocks));
}

function gridTable(rows) {
  const shown = rows.slice(0, GRID_ROWS).map((row) => {
    const cells = row.slice(0, GRID_COLUMNS).map((cell) => make("td", {}, cell === null ? "NaN" : numberText(cell)));
    if (row.length > GRID_COLUMNS) cells.push(make("td", { class: "more" }, "…"));
    return make("tr", {}, cells);
  });
  if (rows.length > GRID_ROWS) shown.push(make("tr", {}, make("td", { class: "more" }, "…")));
  return make("table", {}, make("tbody", {}, shown));
}

// A line of the user's program with the lines around it; `marks` says how a line is marked.
function codeLines(site, around) {
  const numbers = Object.keys(site.code)
    .map(Number)
    .filter((line) => Math.abs(line - site.line) <= around)
    .sort((a, b) => a - b);
  if (!numbers.length) return make("p", { class: "quiet" }, "The text of this line was not recorded.");
  const texts = numbers.map((line) => String(site.code[line]));
  const spaces = texts.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
  const indent = Math.min(...spaces, 40);
  return make(
    "pre",
    { class: "code" },
    numbers.map((line, index) =>
      make(
        "span",
        { class: line === site.line ? "line here" : "line", "data-line": line },
        make("span", { class: "number" }, line),
        make("span", { class: "text" }, texts[index].slice(indent) || " "),
      ),
    ),
  );
}
