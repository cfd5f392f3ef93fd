// The fleet: what needs a person, counts by state, every node a cell, and a table of the same.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./hooks.js";
import { Badge, CopyCommand, Lasts, NodeLink, Rows, STATES, byName, byUrgency, html, stateOf } from "./view.js";
import { store } from "./state.js";
import { setOptions } from "./route.js";

/** Cells are squares of this size, with a gap. */
const CELL = 15;
const PITCH = 17;

/** Cells of one canvas: no browser draws one that is too large. */
const CHUNK = 2000;

/** How many nodes that need attention are shown before one asks for all. */
const FIRST = 6;

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function Fleet({ state, route }) {
  const { options } = route;
  const search = (options.get("search") ?? "").toLowerCase();
  const shownStates = (options.get("state") ?? "").split(",").filter(Boolean);
  const grouping = options.get("group") ?? state.groupings[0]?.name ?? "";
  const all = useMemo(() => store.names.map((name) => /** @type {Named} */ ([name, state.nodes[name]])), [state.nodes, store.names]);
  const found = useMemo(
    () => all.filter(([name, node]) => (!shownStates.length || shownStates.includes(node.state)) && matches(search, name, node)),
    [all, search, shownStates.join()],
  );
  const counts = useMemo(() => {
    const counts = new Map();
    for (const [, node] of all) counts.set(node.state, (counts.get(node.state) ?? 0) + 1);
    return counts;
  }, [all]);
  const toggle = (name) => {
    const next = shownStates.includes(name) ? shownStates.filter((one) => one !== name) : [...shownStates, name];
    setOptions({ state: next.join(",") });
  };
  return html`<div class="fleet">
    <${Attention} nodes=${all} />
    <section aria-label="Nodes">
      <div class="tools">
        <h2>${all.length === 1 ? "1 node" : `${all.length} nodes`}</h2>
        <label>Search <input type="search" value=${search} placeholder="name, reason, group" onInput=${(event) => setOptions({ search: event.currentTarget.value })} /></label>
        ${state.groupings.length > 0 && html`<label>Group by <select value=${grouping} onChange=${(event) => setOptions({ group: event.currentTarget.value })}>
          ${state.groupings.map((one) => html`<option value=${one.name} selected=${one.name === grouping}>${one.label}</option>`)}
          <option value="none" selected=${grouping === "none"}>nothing</option></select></label>`}
      </div>
      <div class="chips" role="group" aria-label="Show only nodes that are">
        ${STATES.filter(({ name }) => counts.has(name)).map(({ name, word, symbol }) => html`<button type="button" class=${`chip state-${name}`} aria-pressed=${shownStates.includes(name)} onClick=${() => toggle(name)}>
          <span class="symbol" aria-hidden="true">${symbol}</span>${counts.get(name)} ${word}</button>`)}
        ${(search || shownStates.length > 0) && html`<button type="button" class="chip" onClick=${() => setOptions({ search: "", state: "" })}>Show all</button>`}
      </div>
      ${found.length === 0 ? html`<p>No node matches.</p>` : html`<${Cells} nodes=${found} grouping=${grouping} />`}
    </section></div>
    ${found.length > 0 && html`<${Table} nodes=${found} groupings=${state.groupings} />`}`;
}

function matches(search, name, node) {
  if (!search) return true;
  if (name.toLowerCase().includes(search) || node.why?.toLowerCase().includes(search)) return true;
  return Object.values(node.groups).some((value) => value.toLowerCase().includes(search));
}

/** @typedef {[string, import("./types").FleetNode]} Named */

/** The nodes that are stuck, with the command for each. @param {{ nodes: Named[] }} props */
function Attention({ nodes }) {
  const [isWhole, setWhole] = useState(false);
  const stuck = useMemo(() => byUrgency(nodes.filter(([, node]) => node.severity >= 2)), [nodes]);
  if (stuck.length === 0) {
    return html`<section class="attention fine"><h2>No node is stuck</h2></section>`;
  }
  const shown = isWhole ? stuck.slice(0, 200) : stuck.slice(0, FIRST);
  return html`<section class="attention" aria-label="Nodes that need attention">
    <h2>${stuck.length === 1 ? "1 node needs attention" : `${stuck.length} nodes need attention`}</h2>
    <ul>${shown.map(([name, node]) => html`<li key=${name} class=${`severity-${node.severity}`}>
      <div class="head"><${Badge} state=${node.state} /> <strong><${NodeLink} name=${name} /></strong>
        ${node.since && html`<span class="faint">for <${Lasts} since=${node.since} /></span>`}
        ${node.until && html`<span class="faint">until ${node.until}</span>`}</div>
      ${node.why && html`<p>${node.why}</p>`}
      ${node.commands?.slice(0, 2).map((one) => html`<${CopyCommand} ...${one} key=${one.command} isShort=${node.commands?.length === 1} />`)}
    </li>`)}</ul>
    ${stuck.length > FIRST && html`<button type="button" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show fewer" : `Show all ${stuck.length}`}</button>`}
    ${isWhole && stuck.length > shown.length && html`<p class="faint">The others are in the table below.</p>`}
  </section>`;
}

function Cells({ nodes, grouping }) {
  const groups = useMemo(() => {
    const groups = new Map();
    for (const entry of nodes) {
      const name = grouping === "none" || !grouping ? "" : entry[1].groups[grouping] ?? "without one";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(entry);
    }
    return [...groups].sort(([a], [b]) => byName(a, b));
  }, [nodes, grouping]);
  const [pointed, point] = useState(/** @type {any} */ (null));
  return html`<div class="cells">
    ${groups.map(([name, members]) => html`<${Group} key=${name} name=${name} members=${members} point=${point} />`)}
    <p class="pointed" aria-hidden="true">${pointed ? html`<${Badge} state=${pointed[1].state} /> <strong>${pointed[0]}</strong> ${pointed[1].why ?? ""}` : "Point at a node; a click opens it."}</p>
  </div>`;
}

function Group({ name, members, point }) {
  const chunks = [];
  for (let from = 0; from < members.length; from += CHUNK) chunks.push(members.slice(from, from + CHUNK));
  return html`<div class="group">
    ${name && html`<h3>${name} <span class="faint">${members.length}</span></h3>`}
    ${chunks.map((chunk, index) => html`<${Chunk} key=${index} label=${name} members=${chunk} point=${point} />`)}
  </div>`;
}

function summary(label, members) {
  const counts = new Map();
  for (const [, node] of members) counts.set(node.state, (counts.get(node.state) ?? 0) + 1);
  const told = STATES.filter(({ name }) => counts.has(name)).map(({ name, word }) => `${counts.get(name)} ${word}`);
  return `${label || "Nodes"}: ${told.join(", ")}. The table below has the same.`;
}

/** Some nodes on one canvas, drawn when it is in sight. */
function Chunk({ label, members, point }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const [isNear, setNear] = useState(false);
  const across = Math.max(1, Math.floor(width / PITCH));
  const height = Math.ceil(members.length / across) * PITCH;
  useLayoutEffect(() => {
    const element = canvas.current;
    if (!element?.parentElement) return undefined;
    const sizes = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    const sights = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: "400px" });
    sizes.observe(element.parentElement);
    sights.observe(element);
    return () => {
      sizes.disconnect();
      sights.disconnect();
    };
  }, []);
  const drawn = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const element = canvas.current;
    if (!element || !isNear || width === 0) return;
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    draw(element, members, across, width, height, drawn);
  }, [members, across, width, height, isNear]);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const onChange = () => {
      drawn.current = null;
      if (canvas.current && width > 0) draw(canvas.current, members, across, width, height, drawn);
    };
    scheme.addEventListener("change", onChange);
    return () => scheme.removeEventListener("change", onChange);
  }, [members, across, width, height]);
  const at = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - box.left) / PITCH), Math.floor((event.clientY - box.top) / PITCH)];
    return column < across ? members[row * across + column] : undefined;
  };
  return html`<canvas ref=${canvas} role="img" aria-label=${summary(label, members)}
    onPointerMove=${(event) => point(at(event) ?? null)}
    onClick=${(event) => { const node = at(event); if (node) location.hash = `#/node/${encodeURIComponent(node[0])}`; }}></canvas>`;
}

/** Draws all cells, or those alone that differ from what is drawn. */
function draw(canvas, members, across, width, height, drawn) {
  const scale = Math.min(devicePixelRatio || 1, 2);
  const form = `${across} ${width} ${height} ${scale} ${members.length}`;
  const context = canvas.getContext("2d");
  if (!context) return;
  const colours = palette(canvas);
  const isWhole = drawn.current?.form !== form;
  if (isWhole) {
    canvas.width = width * scale;
    canvas.height = height * scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
  }
  context.font = `bold ${CELL - 3}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const states = members.map(([, node]) => node.state);
  states.forEach((state, index) => {
    if (!isWhole && drawn.current.states[index] === state) return;
    const [x, y] = [(index % across) * PITCH, Math.floor(index / across) * PITCH];
    const { fill, ink } = colours.get(state) ?? { fill: "grey", ink: "white" };
    context.fillStyle = fill;
    context.fillRect(x, y, CELL, CELL);
    if (state !== "Ready") {
      context.fillStyle = ink;
      context.fillText(stateOf(state).symbol, x + CELL / 2, y + CELL / 2 + 1);
    }
  });
  drawn.current = { form, states };
}

/** The colours of the style sheet, which knows light and dark. */
function palette(element) {
  const style = getComputedStyle(element);
  const colour = (name, part) => style.getPropertyValue(`--${name}-${part}`).trim();
  return new Map(STATES.map(({ name }) => [name, { fill: colour(name, "fill"), ink: colour(name, "ink") }]));
}

function Table({ nodes, groupings }) {
  const sorted = useMemo(() => byUrgency(nodes), [nodes]);
  const columns = [
    { name: "state", title: "State" },
    { name: "node", title: "Node" },
    { name: "for", title: "For" },
    { name: "group", title: groupings.map((one) => one.label).join(", ") || "Groups" },
    { name: "why", title: "Why" },
  ];
  const render = ([name, node]) => html`
    <span role="cell" class="cell cell-state"><${Badge} state=${node.state} /></span>
    <span role="cell" class="cell cell-node"><${NodeLink} name=${name} /></span>
    <span role="cell" class="cell cell-for"><${Lasts} since=${node.since} /></span>
    <span role="cell" class="cell cell-group">${Object.values(node.groups).join(", ")}</span>
    <span role="cell" class="cell cell-why" title=${node.why}>${node.why ?? ""}</span>`;
  return html`<section aria-label="Table of nodes"><h2 class="hidden">Table of nodes</h2>
    <${Rows} items=${sorted} height=${36} columns=${columns} render=${render} label="Nodes" /></section>`;
}
