/** The legend of colors and patterns. A click on a name filters by it. */

import { byId, el } from "./dom.js";

function key(swatch, text, click = null) {
  const parts = [swatch, el("span", {}, text)];
  return click ? el("button", { class: "key", type: "button", onclick: click, title: `Filter: ${text}` }, parts) : el("span", { class: "key" }, parts);
}

function swatch(color, kind = "") {
  const element = el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  if (color) element.style.setProperty("--c", color);
  return element;
}

let before = "";

/** Show the legend of a palette; `search` filters by a text. */
export function showLegend(palette, fleet, search) {
  const pods = [...fleet.pods.values()];
  const hasOther = pods.some((pod) => palette.names.length && !palette.ofName.has(pod[palette.by]));
  const linked = [...fleet.nodes.values()].some((node) => node.islands.some((group) => group.linked));
  const guessed = pods.some((pod) => !pod.exact);
  const state = [palette.key, hasOther, linked, guessed].join("|");
  if (state === before) return;
  before = state;
  byId("legend").replaceChildren(
    ...colors(palette, hasOther, search),
    el("span", { class: "gap" }),
    key(swatch("", "free"), "free"),
    key(swatch("", "short"), "little CPU or memory left"),
    key(swatch("", "stranded"), "stranded"),
    linked ? key(swatch("", "island"), "NVLink island") : "",
  );
}

function colors(palette, hasOther, search) {
  if (palette.by === "use") {
    const steps = [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => palette.ramp(share));
    const ramp = el("span", { class: "swatch ramp", "aria-hidden": "true" });
    ramp.style.background = `linear-gradient(90deg, ${steps.join(", ")})`;
    return [key(ramp, "0 to 100 % in use")];
  }
  if (palette.by === "pod") return [key(swatch(palette.of({ key: "a" }, null)), "each pod has one of eight colors")];
  const prefix = palette.by === "queue" ? "queue:" : "pod:";
  const suffix = palette.by === "queue" ? "" : "/";
  const found = palette.names.map((name) => key(swatch(palette.ofName.get(name)), name, () => search(`${prefix}${name}${suffix}`)));
  const none = palette.by === "namespace" ? "other namespaces" : palette.names.length < 8 ? "no queue" : "no queue, or another";
  return hasOther || !found.length ? [...found, key(swatch(palette.other), none)] : found;
}
