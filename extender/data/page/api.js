/** Reads /debug, with a bearer token if required. Paths are relative, so that a proxy may add a prefix. */

const KEY = "stowage-token";

/** An answer other than 200; `status` is 0 without an answer. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// As in extender/untrusted/visible.py: control characters, direction marks, zero-width characters.
const HIDDEN = /(?!\n)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const escaped = (text) => text.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
const visible = (text) => text.replace(HIDDEN, escaped);

/** JSON without hidden characters in texts and keys, which are untrusted. Most answers are parsed without this step. */
function parsed(text) {
  const hides = text.search(HIDDEN) >= 0 || /\\[bfrtu]/.test(text);
  return JSON.parse(text, hides ? shown : undefined);
}

function shown(_, value) {
  if (typeof value === "string") return visible(value);
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [visible(name), member]));
}

/** The JSON of a path, with hidden characters escaped. On 401, asks for a token and retries. Throws ApiError. */
export async function read(path, problem = "") {
  const token = sessionStorage.getItem(KEY);
  // Two headers: the API server removes the first one from requests that it proxies.
  const value = `Bearer ${token}`;
  const headers = token ? { Authorization: value, "X-Stowage-Authorization": value } : {};
  let response;
  try {
    response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(20000) });
  } catch {
    throw new ApiError(0, "no answer");
  }
  if (response.status === 401) {
    sessionStorage.removeItem(KEY);
    await askToken(token ? "This token was rejected." : problem);
    return read(path);
  }
  if (!response.ok) throw new ApiError(response.status, await detail(response));
  return parsed(await response.text());
}

async function detail(response) {
  const text = await response.text();
  try {
    return visible(String(JSON.parse(text).detail ?? text)).slice(0, 300);
  } catch {
    return visible(text).slice(0, 300);
  }
}

let asking = null;

/** Ask once, however many requests need the token. */
function askToken(problem) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    document.getElementById("token-problem").textContent = problem;
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, input.value.trim());
        input.value = "";
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

/**
 * Call `work` now, and again `seconds` after each call ends, but not while the tab is hidden. `work` may return
 * another number of seconds.
 */
export function poll(work, seconds) {
  let timer = null;
  let running = false;
  async function turn() {
    timer = null;
    if (document.hidden || running) return;
    running = true;
    let wait = 0;
    try {
      wait = await work();
    } finally {
      running = false;
      timer = setTimeout(turn, 1000 * (wait || seconds));
    }
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      timer = null;
    } else if (timer === null) {
      turn();
    }
  });
  turn();
}
