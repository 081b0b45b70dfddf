/** Assembles the page: reads the fleet, draws the view that the link describes, and handles keys and clicks. */

import { ApiError, poll, read } from "./api.js";
import { COLORS, Palette, isDark } from "./colors.js";
import { byId, csv, duration, el, hideTip, number, plural } from "./dom.js";
import { Fleet, SORTS, commonEnds, parseFilter, suggestions } from "./fleet.js";
import { showLegend } from "./legend.js";
import { Link } from "./link.js";
import { FleetMap } from "./map.js";
import { Panel } from "./panel.js";
import { Rows } from "./rows.js";
import { Strip } from "./strip.js";

const MANY = 150; // minimum number of nodes for which the map is the default view
const fleet = new Fleet();
const link = new Link();
const grid = byId("fleet-grid");
const views = { rows: new Rows(grid), map: new FleetMap(grid) };
const panel = new Panel();
const strip = new Strip(() => KEYS.w());
const shown = { nodes: [], look: null, active: null, loaded: false, at: 0 };

const viewName = () => (link.values.view in views ? link.values.view : fleet.withGpus().length > MANY ? "map" : "rows");
const current = () => views[viewName()];

function colorBy() {
  if (link.values.color in COLORS) return link.values.color;
  return [...fleet.pods.values()].some((pod) => pod.queue) ? "queue" : "namespace";
}

/** Draw the fleet as the link describes. */
function draw() {
  if (!shown.loaded) return;
  const filter = parseFilter(link.values.q);
  const palette = new Palette(colorBy(), fleet, isDark());
  const [kind, name, index] = link.selection;
  const picked = kind === "pod" && fleet.pods.has(name) ? name : "";
  const sort = SORTS[link.values.sort] ? link.values.sort : "model";
  const someone = !filter.empty && [...fleet.pods.values()].some(filter.picks);
  const ends = commonEnds(fleet.withGpus().map((node) => node.name));
  const look = {
    palette,
    ends,
    picked,
    grouped: sort === "model",
    dims: (pod) => (someone && !filter.picks(pod)) || (picked !== "" && picked !== pod.key),
    key: `${palette.key}|${link.values.q}|${someone}|${picked}|${ends}`,
  };
  const activeNode = shown.active ? shown.nodes[shown.active[0]] : null;
  shown.nodes = fleet.withGpus().filter(filter.node).sort(SORTS[sort][1]);
  shown.look = look;
  const wanted = kind === "pod" ? fleet.pods.get(name)?.node.name : (name ?? activeNode?.name);
  const at = shown.nodes.findIndex((node) => node.name === wanted);
  shown.active = at < 0 ? null : [at, kind === "gpu" ? index : kind ? -1 : (shown.active?.[1] ?? -1)];
  current().show(shown.nodes, look, shown.active);
  showLegend(palette, fleet, (text) => search(text));
  panel.show({ fleet, hours: shown.teams, use: shown.use, look, selection: link.selection, go: select, again: draw, search });
  controls(filter);
}

function controls(filter) {
  const all = fleet.withGpus().length;
  byId("filter-count").textContent = filter.empty ? plural(all, "node") : `${number(shown.nodes.length)} of ${plural(all, "node")}`;
  if (document.activeElement !== byId("filter")) byId("filter").value = link.values.q;
  byId("color").value = colorBy();
  byId("sort").value = SORTS[link.values.sort] ? link.values.sort : "model";
  for (const button of byId("view").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === viewName()));
  }
  if (!all) message("No node has GPUs", "Stowage has not found a node with GPUs yet. Nodes appear once their device plugin advertises GPUs.");
  else if (!shown.nodes.length) {
    message("No node matches", `“${link.values.q}”`, el("button", { type: "button", onclick: () => search("") }, "Clear the filter"));
  } else message("");
}

/** A message instead of the nodes, "" for none. */
function message(title, text = "", button = null) {
  const place = byId("message");
  place.hidden = !title;
  grid.hidden = Boolean(title);
  byId("columns").hidden = Boolean(title) || viewName() === "map";
  if (title) place.replaceChildren(el("strong", {}, title), text, ...(button ? [el("div", {}, button)] : []));
}

/** Suggest words to follow the typed ones. */
function suggest() {
  const before = link.values.q ? `${link.values.q} ` : "";
  byId("words").replaceChildren(...suggestions(fleet).map((word) => el("option", { value: before + word })));
}

function search(text) {
  byId("filter").value = text;
  link.set({ q: text.trim() });
}

/** Select "gpu/NODE/INDEX", "node/NAME", "pod/NAMESPACE/NAME", or nothing. */
function select(what) {
  hideTip();
  link.set({ sel: what }, true);
  if (shown.active) current().reveal(shown.active[0]);
  if (!what) grid.focus();
}

function clicked(event) {
  const found = current().at(event.target, event);
  if (!found) return;
  if (found.pod) select(`pod/${found.pod}`);
  else if (found.gpu) select(`gpu/${found.node.name}/${found.gpu.index}`);
  else if (viewName() === "map" || event.target.closest(".name")) select(`node/${found.node.name}`);
}

/** Handle keys of the grid: move, or open the active item. */
function gridKey(event) {
  const moves = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown"];
  if (!shown.nodes.length || event.ctrlKey || event.altKey || event.metaKey) return;
  if (moves.includes(event.key)) {
    shown.active = shown.active ? current().move(shown.active, event.key) : [0, -1];
    current().show(shown.nodes, shown.look, shown.active);
    current().reveal(shown.active[0]);
  } else if (event.key === "Enter" && shown.active) {
    const node = shown.nodes[shown.active[0]];
    select(shown.active[1] >= 0 ? `gpu/${node.name}/${shown.active[1]}` : `node/${node.name}`);
    panel.focus();
  } else return;
  event.preventDefault();
}

const KEYS = {
  "/": () => byId("filter").select(),
  v: () => link.set({ view: viewName() === "rows" ? "map" : "rows" }),
  c: () => {
    const names = Object.keys(COLORS);
    link.set({ color: names[(names.indexOf(colorBy()) + 1) % names.length] });
  },
  w: () => {
    select("");
    panel.focus();
  },
  "?": () => byId("help-dialog").showModal(),
};

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (link.values.sel) select("");
    else if (link.values.q) search("");
    if (event.target === byId("filter")) grid.focus();
  } else if (event.key in KEYS && !event.target.matches("input, select")) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

function live(state, text) {
  byId("live").dataset.state = state;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}

async function follow() {
  try {
    const answer = await read(`debug/fleet?since=${encodeURIComponent(fleet.version)}`);
    const changed = fleet.apply(answer);
    live("live", "live");
    shown.at = Date.now();
    strip.now(fleet.totals);
    if (changed || !shown.loaded) {
      shown.loaded = true;
      draw();
      if (shown.active && !document.body.dataset.ready) current().reveal(shown.active[0]);
    }
    if (!document.body.dataset.ready) requestAnimationFrame(() => performance.mark("drawn"));
    document.body.dataset.ready = "true";
    return 0;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return failed(error);
  }
}

/** Show the problem; returns the seconds until the next attempt. */
function failed(error) {
  const texts = {
    0: ["lost", "connection lost", "Stowage does not answer", "This page retries every few seconds."],
    503: ["waiting", error.message, "Stowage is not ready yet", error.message],
    403: ["lost", "access denied", "Access denied", error.message],
  };
  const [state, short, title, text] = texts[error.status] ?? ["lost", `error ${error.status}`, `Error ${error.status}`, error.message];
  live(state, shown.loaded ? `${short}, figures are ${duration((Date.now() - shown.at) / 1000)} old` : short);
  if (!shown.loaded) message(title, text);
  return error.status === 503 ? 1 : 5;
}

async function followHistory() {
  try {
    const { teams, use, ...columns } = await read("debug/fleet/history");
    strip.show(columns);
    const changed = JSON.stringify(use) !== JSON.stringify(shown.use);
    Object.assign(shown, { teams, use });
    if (changed) draw();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return 5;
  }
  return 0;
}

async function describe() {
  try {
    const { version, source } = await read("version");
    byId("source").textContent = `${version} · ${source}`;
    byId("source").title = source;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

function theme(next) {
  const themes = ["auto", "light", "dark"];
  const now = themes.includes(localStorage.getItem("stowage-theme")) ? localStorage.getItem("stowage-theme") : "auto";
  const chosen = next ? themes[(themes.indexOf(now) + 1) % 3] : now;
  localStorage.setItem("stowage-theme", chosen);
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").textContent = `Theme: ${chosen}`;
  draw();
}

async function copyLink() {
  const button = byId("copy-link");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy the address bar";
  }
  setTimeout(() => (button.textContent = "Copy link"), 2000);
}

/** Download the displayed nodes. */
function nodesAsCsv() {
  const rows = shown.nodes.map((node) => [node.name, node.model, node.zone, node.total, node.whole, node.free, node.stranded, node.pods.length, node.closed || node.problem]);
  csv("nodes", ["node", "model", "zone", "GPUs", "entirely free", "free", "stranded", "pods", "note"], rows);
}

function wire() {
  for (const name of Object.keys(views)) {
    const text = name === "rows" ? "Rows" : "Map";
    byId("view").append(el("button", { type: "button", value: name, title: `${text} (v)`, onclick: () => link.set({ view: name }) }, text));
  }
  byId("color").append(...Object.entries(COLORS).map(([value, text]) => el("option", { value }, text)));
  byId("sort").append(...Object.entries(SORTS).map(([value, [text]]) => el("option", { value }, text)));
  byId("color").addEventListener("change", (event) => link.set({ color: event.target.value }));
  byId("sort").addEventListener("change", (event) => link.set({ sort: event.target.value }));
  byId("filter").addEventListener("input", (event) => link.set({ q: event.target.value.trim() }));
  byId("filter").addEventListener("focus", () => suggest());
  byId("filter").addEventListener("keydown", (event) => event.key === "Enter" && grid.focus());
  byId("theme").addEventListener("click", () => theme(true));
  byId("copy-link").addEventListener("click", copyLink);
  byId("csv").addEventListener("click", nodesAsCsv);
  byId("help-button").addEventListener("click", KEYS["?"]);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    grid.focus();
  });
  grid.addEventListener("click", clicked);
  grid.addEventListener("keydown", gridKey);
  document.addEventListener("keydown", key);
  link.addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

wire();
theme(false);
describe();
poll(follow, 2);
poll(followHistory, 10);
