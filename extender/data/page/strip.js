/** Figures of the fleet, with curves of the last hours. */

import { byId, duration, el, hideTip, number, showTip, svg } from "./dom.js";

const WIDTH = 200;
const HEIGHT = 30;

/** [field, label, format of a value, maximum of the axis]. */
const FIGURES = [
  { field: "used", live: true, label: "GPUs in use", most: "gpus", of: (row) => `${percent(row.used, row.gpus)} of ${number(row.gpus)}` },
  { field: "whole", live: true, label: "GPUs entirely free" },
  { field: "whole_nodes", live: true, label: "Nodes entirely free" },
  { field: "largest_island", label: "Largest NVLink request", of: (row) => `of ${row.largest_request} free on one node` },
  { field: "stranded", label: "GPUs stranded", of: stranded, places: 1 },
  { field: "waiting", live: true, label: "Pending pods", opens: true, of: late },
];

/** Stranded capacity by cause. */
function stranded(row) {
  const causes = [["CPU", row.stranded_by_cpu], ["host memory", row.stranded_by_host_memory], ["GPU memory", row.stranded_compute]];
  const found = causes.filter(([, gpus]) => gpus > 0.05).sort((a, b) => b[1] - a[1]);
  return found.map(([cause, gpus]) => `${number(gpus, 1)} ${cause}`).join(", ");
}

/** Queues with a pod that has waited longer than the queue's objective. */
function late(row) {
  const now = Date.now() / 1000;
  const queues = Object.entries(row.objectives ?? {}).filter(([, [oldest, objective]]) => now - oldest > objective);
  return queues.length ? `longer than the objective: ${queues.map(([queue]) => queue).join(", ")}` : "";
}

function percent(value, all) {
  return all ? `${Math.round((100 * value) / all)} %` : "0 %";
}

export class Strip {
  #columns = { at: [] };
  #totals = {};
  #cards;

  /** `open` shows the pending pods. */
  constructor(open = () => {}) {
    this.#cards = FIGURES.map((figure) => this.#card(figure, open));
    byId("strip").replaceChildren(...this.#cards.map((card) => card.element));
  }

  #card(figure, open) {
    const value = el("div", { class: "value num" }, "–");
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    const link = figure.opens ? { type: "button", title: "Show the pending pods (w)", onclick: open } : {};
    const element = el(figure.opens ? "button" : "div", { class: "card", ...link }, el("div", { class: "label" }, figure.label), value, picture);
    element.addEventListener("mousemove", (event) => this.#point(event, figure, picture));
    element.addEventListener("mouseleave", () => {
      hideTip();
      picture.querySelector(".cursor")?.remove();
    });
    return { figure, value, picture, element };
  }

  /** `columns`: an answer of /debug/fleet/history. */
  show(columns) {
    this.#columns = columns;
    const last = columns.at.length - 1;
    if (last < 0) return;
    for (const { figure, value, picture } of this.#cards) {
      const now = this.#columns[figure.field][last];
      const note = figure.of ? figure.of(this.#row(last)) : "";
      this.#write(figure, value, figure.live && figure.field in this.#totals ? this.#totals : this.#row(last));
      picture.setAttribute("aria-label", `${figure.label}: ${number(now, figure.places ?? 0)} ${note}; ${this.#range(figure)}`);
      picture.replaceChildren(...this.#curve(figure));
    }
  }

  /** The current figures: the fleet is read more often than its history. */
  now(totals) {
    this.#totals = totals;
    for (const { figure, value } of this.#cards) if (figure.field in totals) this.#write(figure, value, totals);
  }

  #write(figure, value, row) {
    const note = [figure.of?.(row), this.#before(figure, row)].filter(Boolean).join("; ");
    value.title = note;
    value.replaceChildren(number(row[figure.field], figure.places ?? 0), " ", el("small", {}, note));
  }

  /** The value of the oldest sample, if it differs. */
  #before({ field, places = 0 }, row) {
    const [at, was] = [this.#columns.at[0], this.#columns[field]?.[0]];
    const now = row[field];
    return at && number(was, places) !== number(now, places) ? `was ${number(was, places)}, ${duration(Date.now() / 1000 - at)} ago` : "";
  }

  #row(index) {
    return Object.fromEntries(Object.entries(this.#columns).map(([name, values]) => [name, values[index]]));
  }

  #range({ field }) {
    const { at } = this.#columns;
    const values = this.#columns[field];
    return `from ${number(Math.min(...values), 1)} to ${number(Math.max(...values), 1)} over ${duration(at.at(-1) - at[0])}`;
  }

  /** Steps, because a sample holds for one moment. */
  #curve({ field, most }) {
    const { at } = this.#columns;
    const values = this.#columns[field];
    const top = Math.max(1, ...(most ? this.#columns[most] : values)) * 1.04;
    const span = Math.max(1, at.at(-1) - at[0]);
    const x = (i) => ((WIDTH * (at[i] - at[0])) / span).toFixed(1);
    const y = (value) => (HEIGHT - 1 - ((HEIGHT - 2) * value) / top).toFixed(1);
    let path = `M0 ${y(values[0])}`;
    for (let i = 1; i < values.length; i += 1) path += `H${x(i)}V${y(values[i])}`;
    path += `H${WIDTH}`;
    return [svg("path", { class: "area", d: `${path}V${HEIGHT}H0Z` }), svg("path", { class: "curve", d: path })];
  }

  #point(event, figure, picture) {
    const { at } = this.#columns;
    if (at.length < 2) return;
    const box = picture.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const moment = at[0] + share * (at.at(-1) - at[0]);
    const index = Math.max(0, at.findIndex((one) => one > moment) - 1 >= 0 ? at.findIndex((one) => one > moment) - 1 : at.length - 1);
    picture.querySelector(".cursor")?.remove();
    const x = WIDTH * share;
    picture.append(svg("line", { class: "cursor", x1: x, x2: x, y1: 0, y2: HEIGHT }));
    const value = this.#columns[figure.field][index];
    const note = figure.of ? ` ${figure.of(this.#row(index))}` : "";
    const when = new Date(1000 * at[index]);
    showTip(event.clientX, event.clientY, `${number(value, figure.places ?? 0)}${note}`, `${when.toLocaleTimeString()}, ${duration(Date.now() / 1000 - at[index])} ago`);
  }
}
