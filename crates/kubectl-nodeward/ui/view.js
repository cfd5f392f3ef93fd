// What all views are made of: markup, states of nodes, times, commands to copy.

import { h } from "./preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./hooks.js";
import htm from "./htm.js";

export const html = htm.bind(h);

/** @typedef {import("./types").State} State */
/** @typedef {import("./types").NodeState} NodeState */

/**
 * The states of a node, the most urgent first: each has a word, a symbol and a colour, so that none is told by colour alone.
 * @type {{ name: NodeState, word: string, symbol: string }[]}
 */
export const STATES = [
  { name: "Blocked", word: "blocked", symbol: "!" },
  { name: "Remediating", word: "under remediation", symbol: "+" },
  { name: "Unhealthy", word: "unhealthy", symbol: "?" },
  { name: "NotReady", word: "not Ready", symbol: "×" },
  { name: "Waiting", word: "waiting", symbol: "…" },
  { name: "Draining", word: "draining", symbol: "↓" },
  { name: "Drained", word: "drained", symbol: "□" },
  { name: "Recovering", word: "back", symbol: "↑" },
  { name: "Cordoned", word: "cordoned", symbol: "‖" },
  { name: "Ready", word: "Ready", symbol: "·" },
];

const BY_NAME = new Map(STATES.map((state, order) => [state.name, { ...state, order }]));

/** @param {NodeState} name */
export function stateOf(name) {
  return BY_NAME.get(name) ?? { name, word: name, symbol: "·", order: STATES.length };
}

/** From what counts most to what counts least. @type {Record<import("./types").Severity, number>} */
const URGENCY = { NeedsPerson: 0, Acts: 1, Waits: 2, Fine: 3 };

/**
 * What needs a person first, then by state; within these as they were. One pass, for a large fleet changes often.
 * @param {[string, import("./types").FleetNode][]} nodes
 */
export function byUrgency(nodes) {
  const buckets = new Map();
  for (const entry of nodes) {
    const [, node] = entry;
    const place = URGENCY[node.severity] * 100 + stateOf(node.state).order;
    const bucket = buckets.get(place);
    if (bucket) bucket.push(entry);
    else buckets.set(place, [entry]);
  }
  return [...buckets].sort(([a], [b]) => a - b).flatMap(([, bucket]) => bucket);
}

const collator = new Intl.Collator("en", { numeric: true });

export function byName(a, b) {
  return collator.compare(a, b);
}

/** A symbol and a word. @param {{ state: NodeState }} props */
export function Badge({ state }) {
  const { word, symbol } = stateOf(state);
  return html`<span class="badge state-${state}"><span class="symbol" aria-hidden="true">${symbol}</span>${word}</span>`;
}

/** `4m10s`, its two greatest units. @param {number} seconds */
export function span(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  let rest = Math.max(0, Math.floor(seconds));
  const told = [];
  for (const [unit, size] of parts) {
    const count = Math.floor(rest / Number(size));
    rest -= count * Number(size);
    if (count > 0 || (unit === "s" && told.length === 0)) told.push(`${count}${unit}`);
    else if (told.length > 0) break;
  }
  return told.slice(0, 2).join("");
}

/** The moment against which ages count: now, or that of a snapshot. */
export const clock = {
  /** @type {number | undefined} */ frozen: undefined,
  now() {
    return this.frozen ?? Date.now();
  },
};

/** @type {Set<(second: number) => void>} */
const seconds = new Set();
setInterval(() => {
  if (clock.frozen === undefined) for (const tick of seconds) tick(Date.now());
}, 1000);

/** Renders anew each second, for ages and countdowns. */
export function useSeconds() {
  const [, tick] = useState(0);
  useEffect(() => {
    seconds.add(tick);
    return () => {
      seconds.delete(tick);
    };
  }, []);
}

/** How long ago, or in how long. @param {{ at?: string | null, prefix?: string }} props */
export function Age({ at, prefix = "" }) {
  useSeconds();
  if (!at) return null;
  const seconds = (clock.now() - Date.parse(at)) / 1000;
  const text = seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  return html`<time datetime=${at} title=${at}>${prefix}${text}</time>`;
}

/** For how long. @param {{ since?: string | null }} props */
export function Lasts({ since }) {
  useSeconds();
  if (!since) return null;
  return html`<time datetime=${since} title=${`since ${since}`}>${span((clock.now() - Date.parse(since)) / 1000)}</time>`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from a file has no clipboard of its own: the text is selected instead, to be copied by hand.
    return false;
  }
}

/** A command and a button that copies it. @param {{ command: string, label?: string, isShort?: boolean }} props */
export function CopyCommand({ command, label, isShort = false }) {
  const [told, tell] = useState("");
  const onClick = async (event) => {
    const code = event.currentTarget.previousElementSibling;
    if (await copy(command)) {
      tell("Copied");
    } else {
      getSelection()?.selectAllChildren(code);
      tell("Selected");
    }
    setTimeout(() => tell(""), 2000);
  };
  return html`<div class="command">
    ${label && !isShort && html`<span class="label">${label}:</span>`}
    <code title=${label}>${command}</code>
    <button type="button" onClick=${onClick} aria-label=${`Copy: ${command}`}>${told || "Copy"}</button>
    <span class="hidden" role="status">${told}</span>
  </div>`;
}

/** @param {string} name */
export function nodeAddress(name) {
  return `#/node/${encodeURIComponent(name)}`;
}

/** A link to a node's view; `stop` is its place among the tab stops. @param {{ name: string, stop?: number }} props */
export function NodeLink({ name, stop }) {
  return html`<a href=${nodeAddress(name)} tabindex=${stop}>${name}</a>`;
}

/** Where the keyboard is. @type {HTMLElement | null} */
let focused = null;
addEventListener("focusin", (event) => {
  focused = event.target instanceof HTMLElement ? event.target : null;
});
// Whoever points elsewhere gives it up.
addEventListener("pointerdown", () => (focused = null), true);

/** A live update that moves or removes an element takes no focus away. */
export function useKeptFocus() {
  useLayoutEffect(() => {
    if (!focused || document.activeElement !== document.body) return;
    const kept = focused.isConnected ? focused : document.getElementById("main");
    kept?.focus({ preventScroll: true });
  });
}

/**
 * Rows of one height of which only those in sight are in the document. One tab stop: arrow keys move, Enter opens.
 * Each item is a key, by which the chosen row is kept when rows move, and what `render` takes.
 */
export function Rows({ items, height, render, open, columns, label, limit = 560 }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [chosen, choose] = useState("");
  const [from, to] = [Math.max(0, Math.floor(top / height) - 8), Math.ceil((top + limit) / height) + 8];
  const shown = items.slice(from, to);
  const onKeyDown = (event) => {
    const at = items.findIndex(([key]) => key === chosen);
    if (event.key === "Enter" && at >= 0 && event.target === box.current) return open(items[at]);
    const page = Math.max(1, Math.floor(limit / height) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length }[event.key];
    if (!step || !box.current) return;
    event.preventDefault();
    const next = Math.min(items.length - 1, Math.max(0, at + step));
    choose(items[next][0]);
    // Below the head, which stays in sight.
    const least = (next + 2) * height - box.current.clientHeight;
    box.current.scrollTop = Math.max(least, Math.min(next * height, box.current.scrollTop));
  };
  const isShown = shown.some(([key]) => key === chosen);
  return html`<div class="rows" tabindex="0" role="grid" aria-label=${label} aria-rowcount=${items.length + 1} ref=${box}
    aria-activedescendant=${isShown ? `row ${chosen}`.replaceAll(" ", "-") : undefined}
    onKeyDown=${onKeyDown} onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <div role="rowgroup" class="rows-head"><div role="row" class="row" aria-rowindex="1">
      ${columns.map((column) => html`<span role="columnheader" class=${`cell cell-${column.name}`}>${column.title}</span>`)}
    </div></div>
    <div role="rowgroup" class="rows-body" ref=${(element) => element && (element.style.height = `${items.length * height}px`)}>
      ${shown.map((item, index) => html`<div role="row" class=${`row placed ${item[0] === chosen ? "chosen" : ""}`} key=${item[0]} id=${`row ${item[0]}`.replaceAll(" ", "-")} aria-rowindex=${from + index + 2}
        ref=${(element) => element && (element.style.transform = `translateY(${(from + index) * height}px)`)}>${render(item)}</div>`)}
    </div>
  </div>`;
}
