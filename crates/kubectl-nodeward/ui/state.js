// What is shown: the state, and the stream that keeps it current.

import { useEffect, useState } from "./hooks.js";
import { byName, clock } from "./view.js";

/** @typedef {import("./types").State} State */
/** @typedef {import("./types").Change} Change */

/** Without a word of the server for so long, what is shown counts as old. */
const SILENCE = 12_000;

/** @type {{ state: State | null, names: string[], views: Record<string, any>, heard: number, trouble: string, version: number }} */
export const store = {
  state: null,
  // Of all nodes, in their order: it costs too much to sort thousands of them at each change.
  names: [],
  views: {},
  heard: Date.now(),
  trouble: "",
  version: 0,
};

const listeners = new Set();

function publish() {
  store.version += 1;
  for (const listener of listeners) listener(store.version);
}

/** Renders anew when what is shown changes. */
export function useStore() {
  const [, render] = useState(0);
  useEffect(() => {
    listeners.add(render);
    // Something may have come since the first rendering.
    render(store.version);
    return () => listeners.delete(render);
  }, []);
  return store;
}

/** @param {State} state @param {Change} change @returns {State} */
export function apply(state, change) {
  const next = { ...state, ...(change.whole ?? {}), at: change.at };
  for (const [section, entries] of Object.entries(change.set ?? {})) next[section] = { ...next[section], ...entries };
  for (const [section, keys] of Object.entries(change.drop ?? {})) {
    next[section] = { ...next[section] };
    for (const key of keys) delete next[section][key];
  }
  return next;
}

/** @param {State} state */
function nameAll(state) {
  store.names = Object.keys(state.nodes).sort(byName);
}

/** @param {State} state */
function show(state) {
  store.state = state;
  nameAll(state);
  const moment = state.source?.snapshot;
  clock.frozen = moment ? Date.parse(moment) : undefined;
}

function heard() {
  store.heard = Date.now();
  store.trouble = "";
}

/** @param {Change} change */
export function receive(change) {
  if (!store.state) return;
  const before = store.state.nodes;
  store.state = apply(store.state, change);
  const isNew = (name) => !(name in before);
  if (change.drop?.nodes || Object.keys(change.set?.nodes ?? {}).some(isNew)) nameAll(store.state);
  publish();
}

function follow() {
  const stream = new EventSource("/events");
  stream.addEventListener("state", (event) => {
    heard();
    show(JSON.parse(event.data));
    publish();
  });
  stream.addEventListener("change", (event) => {
    heard();
    receive(JSON.parse(event.data));
  });
  stream.addEventListener("beat", () => {
    const wasSilent = store.trouble !== "";
    heard();
    if (wasSilent) publish();
  });
  stream.addEventListener("error", () => {
    store.trouble = "the connection to kubectl nodeward ui is lost";
    publish();
    // The browser connects again by itself, unless it was refused: then only a new address helps.
    if (stream.readyState === EventSource.CLOSED) setTimeout(again, 3000);
  });
}

async function again() {
  try {
    const answer = await fetch("/events", { method: "HEAD" });
    if (answer.status === 401 || answer.status === 403) {
      store.trouble = "this page is not allowed any more: open the address that kubectl nodeward ui printed";
      publish();
      return;
    }
  } catch {
    // Not back yet.
  }
  follow();
}

/** Begins: with the state in the page, or with the stream. */
export function begin() {
  const kept = document.getElementById("state");
  if (kept) {
    const moment = JSON.parse(kept.textContent ?? "{}");
    show(moment.state);
    store.views = moment.nodeViews ?? {};
    publish();
    return;
  }
  follow();
  setInterval(() => {
    if (Date.now() - store.heard > SILENCE && !store.trouble) {
      store.trouble = "kubectl nodeward ui does not answer";
      publish();
    }
  }, 1000);
}

/** A node's view, live. @param {string} name */
export function useNodeView(name) {
  const [view, setView] = useState(/** @type {any} */ (null));
  useEffect(() => {
    setView(null);
    if (!name) return undefined;
    if (document.getElementById("state")) {
      setView(store.views[name] ?? { missing: "this page was kept without more of this node" });
      return undefined;
    }
    const stream = new EventSource(`/events?node=${encodeURIComponent(name)}`);
    stream.addEventListener("node", (event) => setView(JSON.parse(event.data)));
    stream.addEventListener("gone", (event) => setView({ missing: JSON.parse(event.data).message }));
    // What was read before stays, as old as it is.
    stream.addEventListener("unread", (event) => setView((last) => ({ ...last, missing: undefined, unread: JSON.parse(event.data).message })));
    return () => stream.close();
  }, [name]);
  return view;
}
