/** The state of the view, in the fragment of the URL so that links can be shared. The server never sees it. */

const DEFAULTS = { q: "", view: "", color: "", sort: "model", sel: "" };

export class Link extends EventTarget {
  values = { ...DEFAULTS };

  constructor() {
    super();
    this.#read();
    addEventListener("hashchange", () => {
      this.#read();
      this.dispatchEvent(new Event("change"));
    });
  }

  /** Set some of the values, and update the URL. `step`: the Back button restores the values before. */
  set(values, step = false) {
    const before = JSON.stringify(this.values);
    Object.assign(this.values, values);
    if (before === JSON.stringify(this.values)) return;
    const used = Object.entries(this.values).filter(([name, value]) => value !== DEFAULTS[name]);
    const hash = `#${new URLSearchParams(used)}`;
    history[step ? "pushState" : "replaceState"](null, "", hash === "#" ? location.pathname : hash);
    this.dispatchEvent(new Event("change"));
  }

  /** The selection: ["gpu", node, index], ["node", name], ["pod", namespace/name], or []. */
  get selection() {
    const [kind, ...rest] = this.values.sel.split("/");
    if (kind === "gpu" && rest.length === 2) return [kind, rest[0], Number(rest[1])];
    if (kind === "node" && rest.length === 1) return [kind, rest[0]];
    return kind === "pod" && rest.length === 2 ? [kind, rest.join("/")] : [];
  }

  #read() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const name of Object.keys(DEFAULTS)) this.values[name] = (given.get(name) ?? DEFAULTS[name]).slice(0, 400);
  }
}
