// Nodeward's Events, the last first; overrides and forced acts stand out.

import { useMemo, useState } from "./hooks.js";
import { Age, NodeLink, html } from "./view.js";

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function Log({ state }) {
  const [isForced, setForced] = useState(false);
  const lines = useMemo(
    () => Object.values(state.log).filter((line) => !isForced || line.forced).sort((a, b) => Date.parse(b.at ?? "1970-01-01") - Date.parse(a.at ?? "1970-01-01")),
    [state.log, isForced],
  );
  return html`<div class="tools"><h2>Events</h2>
    <label><input type="checkbox" checked=${isForced} onChange=${(event) => setForced(event.currentTarget.checked)} /> Only overrides and forced acts</label></div>
    ${lines.length === 0 ? html`<p>${isForced ? "No pod was forced in the last hour." : "Nothing was told in the last hour."}</p>` : html`<${Lines} lines=${lines} />`}`;
}

/** @param {{ lines: import("./types").LogLine[] }} props */
export function Lines({ lines }) {
  return html`<ol class="log">${lines.map((line) => html`<li key=${`${line.at} ${line.name} ${line.reason}`} class=${line.forced ? "forced" : line.warning ? "warned" : ""}>
    <span class="when"><${Age} at=${line.at} /></span>
    <span class="what"><strong>${line.forced ? "Forced: " : ""}${line.reason}</strong> ${line.node === line.name ? html`<${NodeLink} name=${line.name} />` : `${line.kind} ${line.name}`}${line.node && line.node !== line.name ? html` on <${NodeLink} name=${line.node} />` : ""}${(line.count ?? 1) > 1 ? ` (${line.count} times)` : ""}</span>
    <span class="note">${line.note}</span>
    <span class="faint">${line.component}</span></li>`)}</ol>`;
}
