/** The panel next to the fleet: the pending pods, or details of the selection. */

import { read } from "./api.js";
import { byId, csvButton, duration, el, number, plural, startsIn } from "./dom.js";
import { byJob, labelKeys, teams } from "./fleet.js";
import { gpuStory, nodeStory, podStory } from "./story.js";
import { gpuName } from "./tile.js";

const panel = byId("panel");
const PENDING = ["pod", "job", "queue", "priority", "created", "requests", "why", "advice"];

export class Panel {
  #shown = "";
  #report = null;
  #problem = "";

  /** `view`: {fleet, look, selection, go}; `go` changes the selection, "" clears it. */
  show(view) {
    const [kind, name, index] = view.selection;
    const title = view.selection.join("/");
    const same = title === this.#shown;
    if (!same) [this.#shown, this.#report, this.#problem] = [title, null, ""];
    const scroll = same ? panel.scrollTop : 0;
    const focus = same && panel.contains(document.activeElement) ? document.activeElement.textContent : null;
    if (!kind) panel.replaceChildren(...this.#waiting(view));
    else panel.replaceChildren(...this.#story(view, kind, name, index));
    for (const table of panel.querySelectorAll("table.costs:not(#teams, #use)")) {
      const [head, ...rows] = [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText));
      table.after(csvButton("table", head, rows));
    }
    panel.scrollTop = scroll;
    if (focus) [...panel.querySelectorAll("button, a, summary")].find((one) => one.textContent === focus)?.focus();
    if (!same && kind && panel.offsetTop > window.innerHeight / 2) panel.scrollIntoView(); // below the fleet on a narrow page
    if (!same && kind === "pod") this.#readPod(view, name, title);
  }

  /** Move the keyboard's focus to the panel. */
  focus() {
    panel.scrollIntoView({ block: "nearest" });
    (panel.querySelector(".close") ?? panel.querySelector("button.link"))?.focus();
  }

  #waiting(view) {
    const { fleet, go } = view;
    const { waiting, moreWaiting } = fleet;
    const count = waiting.length + moreWaiting;
    const link = (pod) => el("button", { class: "link", type: "button", onclick: () => go(`pod/${pod.pod}`) }, pod.pod);
    const items = byJob(waiting).map(([pod, ...others]) =>
      el("div", { class: "wait" },
        el("div", { class: "who" },
          link(pod),
          el("span", { class: "age" }, pod.created ? duration(Date.now() / 1000 - pod.created) : "")),
        others.length ? el("details", {}, el("summary", {}, `and ${plural(others.length, "more pod")} of ${pod.job}`), others.map((other) => el("div", {}, link(other)))) : null,
        el("div", { class: "asks" }, [pod.asked, pod.queue && `queue ${pod.queue}`, pod.priority ? `priority ${pod.priority}` : ""].filter(Boolean).join("; ")),
        el("div", { class: "why" }, pod.why),
        pod.lacks ? el("div", { class: "lacks" }, pod.lacks) : null,
        pod.starts ? el("div", { class: "starts" }, startsIn(pod.starts)) : null,
        pod.advice ? el("div", { class: "help" }, pod.advice) : null));
    return [
      el("div", { class: "head" }, el("h2", { id: "waiting" }, count ? plural(count, "pending pod") : "No pending pods"), count ? csvButton("pending", PENDING, waiting.map((pod) =>
        [pod.pod, pod.job, pod.queue, pod.priority, pod.created ? new Date(1000 * pod.created).toISOString() : "", pod.asked, pod.why, pod.advice])) : null),
      ...items,
      moreWaiting ? el("p", { class: "muted" }, `and ${plural(moreWaiting, "more pod")} of lower urgency`) : "",
      ...this.#use(view),
      ...this.#teams(view),
    ];
  }

  /** GPUs by what they are used for, each in one step: the sums of `stowage audit`. */
  #use({ use = [] }) {
    const sum = use.reduce((total, [, gpus]) => total + gpus, 0);
    const rows = use.map(([title, gpus, wasted]) =>
      el("tr", { class: wasted ? "wasted" : null }, el("td", {}, title), [number(gpus, 1), `${Math.round((100 * gpus) / sum)} %`].map((one) => el("td", { class: "number" }, one))));
    return sum ? [
      el("div", { class: "head" }, el("h3", {}, "Use of the GPUs"), csvButton("use", ["step", "gpus", "wasted"], use)),
      el("table", { class: "costs", id: "use" }, el("tr", {}, ["each GPU counts once", "GPUs", ""].map((one, i) => el("th", { class: i ? "number" : null }, one))), rows),
      el("p", { class: "muted" }, "Why, and what mends it: stowage audit"),
    ] : [];
  }

  /** GPUs of each team now and since Stowage started, and its pending pods; a team is a namespace, a queue, or the value of a label. */
  #teams({ fleet, hours, search, again }) {
    const choices = ["namespace", "queue", ...labelKeys(fleet)];
    const by = choices.includes(localStorage.getItem("stowage-team")) ? localStorage.getItem("stowage-team") : "namespace";
    const choose = (event) => {
      localStorage.setItem("stowage-team", event.target.value);
      again();
    };
    const pick = el("select", { id: "team", onchange: choose }, choices.map((one) => el("option", { value: one, selected: one === by }, one)));
    const had = hours?.[by];
    const past = (name) => (had ? (had[name] ?? [0, 0]).map((one) => number(one, one < 10 ? 1 : 0)) : []);
    const found = teams(fleet, by, Object.keys(had ?? {}));
    const rows = found.map(({ name, gpus, pods, waiting }) => {
      const word = by === "namespace" ? `ns:${name}` : by === "queue" ? `queue:${name}` : `label:${by}=${name}`;
      const title = name ? el("button", { class: "link", type: "button", onclick: () => search(word) }, name) : "none";
      return el("tr", {}, el("td", {}, title), [number(gpus, 1), ...past(name), number(pods), number(waiting)].map((one) => el("td", { class: "number" }, one)));
    });
    const head = [by, "GPUs", ...(had ? ["GPU-hours", "value"] : []), "pods", fleet.moreWaiting ? `of ${fleet.waiting.length} pending` : "pending"];
    return rows.length ? [
      el("div", { class: "head" }, el("h3", {}, el("label", { class: "pick" }, "Totals by ", pick)), csvButton("totals", head, found.map((team) =>
        [team.name, team.gpus, ...(had ? (had[team.name] ?? [0, 0]) : []), team.pods, team.waiting]))),
      el("table", { class: "costs", id: "teams" }, el("tr", {}, ["name", ...head.slice(1)].map((one, i) => el("th", { class: i ? "number" : null }, one))), rows),
      had ? el("p", { class: "muted" }, "GPU-hours since Stowage started, and their value in hours of an A100 with 80 GB") : "",
    ] : [];
  }

  #story({ fleet, look, go }, kind, name, index) {
    const node = fleet.nodes.get(kind === "pod" ? fleet.pods.get(name)?.node.name : name);
    const gpu = kind === "gpu" ? node?.gpus[index] : null;
    const title = gpu ? `${gpuName(gpu)} of ${name}` : name;
    const close = el("button", { class: "close", type: "button", "aria-label": "Close", title: "Close (Esc)", onclick: () => go("") }, "×");
    const head = el("div", { class: "head" }, el("div", {}, el("div", { class: "kind" }, kind === "gpu" ? "GPU" : kind), el("h2", {}, title)), close);
    const body =
      kind === "pod" ? podStory(name, fleet.pods.get(name), this.#report, this.#problem, go)
      : gpu ? gpuStory(gpu, look, go)
      : node && kind === "node" ? nodeStory(node, look, go)
      : [el("p", { class: "muted" }, "It no longer exists.")];
    return [head, ...body.flat().filter((child) => child !== null && child !== undefined)];
  }

  async #readPod(view, key, title) {
    try {
      const report = await read(`debug/pods/${key.split("/").map(encodeURIComponent).join("/")}`);
      if (this.#shown === title) this.#report = report;
    } catch (error) {
      if (this.#shown === title) this.#problem = error.message;
    }
    if (this.#shown === title) view.again();
  }
}
