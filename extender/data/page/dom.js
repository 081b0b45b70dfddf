/** DOM helpers. All texts are inserted as text nodes, because names are untrusted. */

/**
 * An element. `attributes` sets attributes, and properties for keys that begin with a dot; `children` are nodes
 * or texts; null is skipped.
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** 1234.5 as "1,234.5", with a maximum number of decimals. */
export function number(value, places = 0) {
  return value.toLocaleString("en", { maximumFractionDigits: places });
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** MiB as GiB. */
export function gib(mib) {
  return `${number(mib / 1024, mib < 10240 ? 1 : 0)} GiB`;
}

/** Seconds as "5 s", "12 min", "3 h", "4 d". */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** The forecast start of a pending pod, as text. */
export function startsIn({ half, most, node, needs, ends }) {
  if (half === null) return "not expected to start: no predictable end of a pod makes room for it";
  const within = (at) => (at === null ? "an unknown time" : duration(at - Date.now() / 1000));
  const more = ends > needs.length ? ` and ${ends - needs.length} more` : "";
  const once = needs.length ? `, once ${needs.join(", ")}${more} have ended on ${node}` : "";
  return `likely to start within ${within(half)} (50 %), within ${within(most)} (90 %)${once}`;
}

/** Download a table as CSV. Texts that a spreadsheet would run as formulas get an apostrophe in front. */
export function csv(name, head, rows) {
  const plain = (value) => (typeof value === "number" ? String(Math.round(value * 1000) / 1000) : String(value).replace(/^[=+@\t\r-]/, "'$&"));
  const cell = (value) => `"${plain(value).replaceAll('"', '""')}"`;
  const text = [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
  const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href, download: `stowage-${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

export function csvButton(name, head, rows) {
  return el("button", { class: "link", type: "button", title: "Download as CSV", onclick: () => csv(name, head, rows) }, "CSV");
}

const tip = byId("tip");

/** Show a text near a point of the window; `title` in bold above it. */
export function showTip(x, y, title, text) {
  tip.replaceChildren(el("b", {}, title), text);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(x + 14, innerWidth - width - 8);
  const top = y + 18 + height > innerHeight ? y - height - 10 : y + 18;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

export function hideTip() {
  tip.hidden = true;
}
