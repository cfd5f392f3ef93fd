// One node: all that `kubectl nodeward why NODE` tells, live.

import { useMemo, useState } from "./hooks.js";
import { Badge, CopyCommand, NodeLink, byUrgency, html } from "./view.js";
import { store, useNodeView } from "./state.js";
import { Lines } from "./log.js";

/** How many names are offered while one types. */
const OFFERED = 40;

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function NodePage({ state, route }) {
  const name = route.subject;
  const view = useNodeView(name);
  const node = state.nodes[name];
  return html`
    <${Choice} state=${state} name=${name} />
    ${name && html`<article class="node">
      <h2>${name} ${node && html`<${Badge} state=${node.state} />`}</h2>
      ${!view && html`<p>Reading the node…</p>`}
      ${view?.missing && html`<p class="warn">${view.missing}</p>`}
      ${view?.unread && html`<p class="warn">What follows is old: ${view.unread}. It is tried again by itself.</p>`}
      ${node && !view?.blocks && html`<${Known} node=${node} drain=${state.drains[name]} />`}
      ${view?.blocks && html`<${Blocks} blocks=${view.blocks.slice(view.blocks[0]?.heading === name ? 1 : 0)} />`}
      ${view?.events?.length > 0 && html`<h3>Events</h3><${Lines} lines=${view.events} />`}
    </article>`}`;
}

function Choice({ state, name }) {
  const [typed, type] = useState("");
  const found = useMemo(
    () => byUrgency(store.names.filter((one) => one.includes(typed)).map((one) => [one, state.nodes[one]])).slice(0, OFFERED),
    [state.nodes, typed],
  );
  const open = (event) => {
    event.preventDefault();
    const target = state.nodes[typed] ? typed : found[0]?.[0];
    if (target) location.hash = `#/node/${encodeURIComponent(target)}`;
  };
  return html`<form class="tools" onSubmit=${open}>
    <label>Node <input list="names" value=${typed} placeholder=${name || "name"} onInput=${(event) => type(event.currentTarget.value)} autocomplete="off" /></label>
    <datalist id="names">${found.map(([one]) => html`<option value=${one}></option>`)}</datalist>
    <button type="submit">Open</button>
  </form>
  ${!name && html`<p>The nodes that matter most now:</p><ul>${found.slice(0, 12).map(([one, node]) => html`<li><${Badge} state=${node.state} /> <${NodeLink} name=${one} /></li>`)}</ul>`}`;
}

/** What the fleet knows of it, where nothing more is told. */
function Known({ node, drain }) {
  return html`${node.why && html`<p>${node.why}</p>`}
    ${drain?.turn && html`<p>${drain.turn}</p>`}
    ${node.commands?.map((one) => html`<${CopyCommand} ...${one} key=${one.command} />`)}`;
}

function Blocks({ blocks }) {
  return html`<div class="blocks">${blocks.map((block, index) => html`<${Block} block=${block} key=${index} />`)}</div>`;
}

function Block({ block }) {
  if (block.heading !== undefined) return html`<h3>${block.heading}</h3>`;
  if (block.command !== undefined) return html`<${CopyCommand} command=${block.command} />`;
  if (block.point !== undefined) return html`<p class=${`point text-${block.style}`}>${block.point}</p>`;
  if (block.field !== undefined) return html`<p class="field"><span class="field-name">${block.field}</span><span class=${`text-${block.style}`}>${block.value}</span></p>`;
  if (block.table) return html`<${BlockTable} table=${block.table} />`;
  return html`<p class=${`text-${block.style}`}>${block.text}</p>`;
}

function BlockTable({ table }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr>${table.columns.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${table.rows.map((row) => row.section
      ? html`<tr><th colspan=${table.columns.length} scope="rowgroup">${row.section.text} <span class="faint">${row.about.text}</span></th></tr>`
      : html`<tr>${row.cells.map((cell) => html`<td class=${`text-${cell.style}`}>${cell.text}</td>`)}</tr>`)}</tbody></table></div>`;
}
