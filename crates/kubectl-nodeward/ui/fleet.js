// The fleet: what needs a person, counts by state, every node a cell, and a table of the same.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./hooks.js";
import { Badge, CopyCommand, Lasts, NodeLink, Rows, STATES, byName, byUrgency, html, nodeAddress, stateOf } from "./view.js";
import { store } from "./state.js";
import { setOptions } from "./route.js";

/** Cells are squares of this size, with a gap. */
const CELL = 15;
const PITCH = 17;

/** About how many cells a canvas has: no browser draws a large one, and a small one is drawn between two frames. */
const CHUNK = 500;

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
  const counts = useMemo(() => countStates(all), [all]);
  const toggle = (name) => {
    const next = shownStates.includes(name) ? shownStates.filter((one) => one !== name) : [...shownStates, name];
    setOptions({ state: next.join(",") });
  };
  return html`<div class="fleet">
    <${Attention} nodes=${all} unread=${state.unread} />
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
      ${found.length === 0 ? html`<p>No node matches.</p>` : html`<${Cells} nodes=${found} grouping=${grouping} /><${Table} nodes=${found} groupings=${state.groupings} />`}
    </section></div>`;
}

function matches(search, name, node) {
  if (!search) return true;
  if (name.toLowerCase().includes(search) || node.why?.toLowerCase().includes(search)) return true;
  return Object.values(node.groups).some((value) => value.toLowerCase().includes(search));
}

/** @typedef {[string, import("./types").FleetNode]} Named */

/** The nodes that need a person, those of one cause together, with the command for each. @param {{ nodes: Named[], unread: { text: string; isHidden: boolean }[] }} props */
function Attention({ nodes, unread }) {
  const [isWhole, setWhole] = useState(false);
  const causes = useMemo(() => {
    const causes = new Map();
    for (const entry of byUrgency(nodes.filter(([, node]) => node.severity === "NeedsPerson"))) {
      const key = `${entry[1].state} ${entry[1].why ?? ""}`;
      if (!causes.has(key)) causes.set(key, []);
      causes.get(key).push(entry);
    }
    return [...causes.values()].sort((a, b) => b.length - a.length);
  }, [nodes]);
  const count = causes.reduce((count, cause) => count + cause.length, 0);
  if (count === 0) {
    const hidden = unread.filter((one) => one.isHidden);
    return html`<section class="attention fine"><h2>${hidden.length === 0 ? "No node needs a person" : "Whether a node needs a person cannot be told"}</h2>
      ${hidden.map(({ text }) => html`<p key=${text}>${text}</p>`)}</section>`;
  }
  const shown = isWhole ? causes.slice(0, 200) : causes.slice(0, FIRST);
  return html`<section class="attention" aria-label="Nodes that need a person">
    <h2>${count === 1 ? "1 node needs a person" : `${count} nodes need a person`}</h2>
    <ul>${shown.map((cause) => {
      const [name, node] = cause[0];
      return html`<li key=${name}>
      <div class="head"><${Badge} state=${node.state} /> ${cause.slice(0, 3).map(([name]) => html`<strong key=${name}><${NodeLink} name=${name} /></strong> `)}
        ${cause.length > 3 && html`<span>and ${cause.length - 3} more</span>`}
        ${node.since && html`<span class="faint">for <${Lasts} since=${node.since} /></span>`}</div>
      ${node.why && html`<p>${node.why}</p>`}
      ${node.commands?.slice(0, 2).map((one) => html`<${CopyCommand} ...${one} key=${one.command} isShort=${node.commands?.length === 1} />`)}
    </li>`;
    })}</ul>
    ${causes.length > FIRST && html`<button type="button" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show fewer" : `Show all ${causes.length}`}</button>`}
    ${isWhole && causes.length > shown.length && html`<p class="faint">The others are in the table below.</p>`}
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
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const sizes = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);
  const across = Math.max(1, Math.floor(width / PITCH));
  /** In the order in which they are drawn. */
  const chunks = useMemo(() => {
    // Whole rows, so that no gap is left between two canvases.
    const size = Math.max(1, Math.floor(CHUNK / across)) * across;
    let begin = 0;
    return groups.flatMap(([group, members]) => {
      const parts = [];
      for (let from = 0; from < members.length; from += size) {
        const part = members.slice(from, from + size);
        parts.push({ group, begin, members: part });
        begin += part.length;
      }
      return parts;
    });
  }, [groups, across]);
  const [pointed, point] = useState(/** @type {Named | null} */ (null));
  return html`<p class="pointed" aria-hidden="true">${pointed ? html`<${Badge} state=${pointed[1].state} /> <strong>${pointed[0]}</strong> ${pointed[1].why ?? ""}` : "Point at a node, or move with the arrow keys; a click or Enter opens it."}</p>
  <div class="cells" ref=${box}>
    <${Cursor} chunks=${chunks} across=${across} point=${point} />
    ${groups.map(([name, members]) => html`<div class="group" key=${name}>
      ${name && html`<h3>${name} <span class="faint">${members.length}</span> <${Counts} members=${members} /></h3>`}
      ${chunks.filter((chunk) => chunk.group === name).map((chunk) => html`<${Chunk} key=${chunk.begin} chunk=${chunk} width=${width} across=${across} point=${point} />`)}
    </div>`)}
  </div>`;
}

/** How many of a group are in each state but Ready. */
function Counts({ members }) {
  const counts = countStates(members);
  return STATES.filter(({ name }) => name !== "Ready" && counts.has(name)).map(({ name, word, symbol }) => html`<span class=${`badge state-${name}`} title=${word}><span class="symbol" aria-hidden="true">${symbol}</span>${counts.get(name)}<span class="hidden"> ${word}</span></span> `);
}

function countStates(members) {
  const counts = new Map();
  for (const [, node] of members) counts.set(node.state, (counts.get(node.state) ?? 0) + 1);
  return counts;
}

/** The node that the arrow keys have come to. One tab stop for all cells. */
function Cursor({ chunks, across, point }) {
  const mark = useRef(/** @type {HTMLElement | null} */ (null));
  const [chosen, choose] = useState("");
  const [isFocused, setFocused] = useState(false);
  let [chunk, at] = [chunks[0], 0];
  for (const one of isFocused ? chunks : []) {
    const found = one.members.findIndex(([name]) => name === chosen);
    if (found >= 0) [chunk, at] = [one, found];
  }
  const [name, node] = chunk.members[at];
  useLayoutEffect(() => {
    const canvas = document.getElementById(chunkId(chunk));
    if (!mark.current || !canvas || !isFocused) return;
    mark.current.style.left = `${canvas.offsetLeft + (at % across) * PITCH}px`;
    mark.current.style.top = `${canvas.offsetTop + Math.floor(at / across) * PITCH}px`;
    mark.current.scrollIntoView({ block: "nearest" });
  }, [chunk, at, across, isFocused]);
  const onKeyDown = (event) => {
    if (event.key === "Enter") location.hash = nodeAddress(name);
    const next = moved(chunks, across, chunk, at, event.key);
    if (!next) return;
    event.preventDefault();
    choose(next[0]);
    point(next);
  };
  return html`<div class="cursor" role="listbox" tabindex="0" aria-label="Nodes as cells" aria-activedescendant=${`cell-${chunk.begin + at}`}
    onKeyDown=${onKeyDown} onFocus=${() => { setFocused(true); point([name, node]); }} onBlur=${() => { setFocused(false); point(null); }}>
    <div role="option" aria-selected="true" class="mark" ref=${mark} id=${`cell-${chunk.begin + at}`} aria-label=${`${name}: ${stateOf(node.state).word}${node.why ? `, ${node.why}` : ""}`}></div>
  </div>`;
}

function chunkId(chunk) {
  return `chunk-${chunk.begin}`;
}

/** The node to which a key leads. @returns {Named | undefined} */
function moved(chunks, across, chunk, at, key) {
  const all = chunks.length - 1;
  const place = chunks.indexOf(chunk);
  if (key === "Home") return chunks[0].members[0];
  if (key === "End") return chunks[all].members.at(-1);
  if (key === "ArrowLeft") return chunk.members[at - 1] ?? chunks[place - 1]?.members.at(-1) ?? chunk.members[at];
  if (key === "ArrowRight") return chunk.members[at + 1] ?? chunks[place + 1]?.members[0] ?? chunk.members[at];
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[key];
  if (!step) return undefined;
  const column = at % across;
  const rows = (one) => Math.ceil(one.members.length / across);
  let [to, row] = [place, Math.floor(at / across) + step];
  while (row < 0 && to > 0) {
    to -= 1;
    row += rows(chunks[to]);
  }
  while (row >= rows(chunks[to]) && to < all) {
    row -= rows(chunks[to]);
    to += 1;
  }
  row = Math.min(Math.max(row, 0), rows(chunks[to]) - 1);
  return chunks[to].members[Math.min(row * across + column, chunks[to].members.length - 1)];
}

function summary(label, members) {
  const counts = countStates(members);
  const told = STATES.filter(({ name }) => counts.has(name)).map(({ name, word }) => `${counts.get(name)} ${word}`);
  return `${label || "Nodes"}: ${told.join(", ")}. The table below has the same.`;
}

/** Some nodes on one canvas, drawn when it is in sight. */
function Chunk({ chunk, width, across, point }) {
  const { group, members } = chunk;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [isNear, setNear] = useState(false);
  const height = Math.ceil(members.length / across) * PITCH;
  useLayoutEffect(() => {
    if (!canvas.current) return undefined;
    const sights = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: "400px" });
    sights.observe(canvas.current);
    return () => sights.disconnect();
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
  return html`<canvas ref=${canvas} id=${chunkId(chunk)} role="img" aria-label=${summary(group, members)}
    onPointerMove=${(event) => point(at(event) ?? null)} onPointerLeave=${() => point(null)}
    onClick=${(event) => { const node = at(event); if (node) location.hash = nodeAddress(node[0]); }}></canvas>`;
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
    <span role="gridcell" class="cell cell-state"><${Badge} state=${node.state} /></span>
    <span role="gridcell" class="cell cell-node"><${NodeLink} name=${name} stop=${-1} /></span>
    <span role="gridcell" class="cell cell-for"><${Lasts} since=${node.since} /></span>
    <span role="gridcell" class="cell cell-group">${Object.values(node.groups).join(", ")}</span>
    <span role="gridcell" class="cell cell-why" title=${node.why}>${node.why ?? ""}</span>`;
  return html`<section aria-label="Table of nodes"><h2 class="hidden">Table of nodes</h2>
    <${Rows} items=${sorted} height=${36} columns=${columns} render=${render} open=${([name]) => { location.hash = nodeAddress(name); }} label="Nodes" /></section>`;
}
