// Making elements, and numbers and shapes as people read them. Text enters the page as text nodes only.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    } else if (name === "style") {
      for (const [key, setting] of Object.entries(value)) element.style.setProperty(key, setting);
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const listOf = (value) => (Array.isArray(value) ? value : []);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

function button(label, act, attributes) {
  return make("button", { type: "button", on: { click: act }, ...attributes }, label);
}

const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many || one + "s"}`;

// In steps of 1024 and with three digits, as the texts of runs and reports have it.
function bytesText(count) {
  if (!Number.isFinite(count)) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(count) >= 1023.5 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${Math.abs(count) >= 99.95 ? count.toFixed(0) : Number(count.toPrecision(3))} ${units[unit]}`;
}

function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "−");
  const size = Math.abs(value);
  const text =
    size >= 1e5 || (size < 1e-3 && size > 0) ? value.toExponential(3) : Number(value.toPrecision(5)).toString();
  return text.replace(/-/g, "−");
}

const shortNumber = (value) => numberText(typeof value === "number" ? Number(value.toPrecision(3)) : value);

function shortened(text, longest) {
  return text.length <= longest ? text : text.slice(0, longest - 1) + "…";
}

const SHORT_TYPES = { float: "f", bfloat: "bf", int: "i", uint: "u", complex: "c" };

// float32 → f32, as wf.graph prints it; what is short already stays.
function typeText(name) {
  const found = /^(?:\w+\.)?(float|bfloat|int|uint|complex)(\d+)$/.exec(name);
  return found ? SHORT_TYPES[found[1]] + found[2] : name;
}

function storedChoice(key) {
  // A page inside a sandboxed frame has no storage.
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function storeChoice(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The choice then lasts as long as the page.
  }
}
