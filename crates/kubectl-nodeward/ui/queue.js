// The drains in the order of their turns, who waits for whom, and the budgets and node groups between them.

import { useMemo, useState } from "./hooks.js";
import { Age, CopyCommand, Lasts, NodeLink, clock, html, span, useSeconds } from "./view.js";

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function Queue({ state }) {
  const drains = useMemo(
    () => Object.values(state.drains).sort((a, b) => (a.ticket ?? Infinity) - (b.ticket ?? Infinity)),
    [state.drains],
  );
  const [chosen, choose] = useState("");
  const [pointed, point] = useState("");
  const [isStuck, setStuck] = useState(false);
  if (drains.length === 0) {
    return html`<h2>No drain is requested</h2><p>Request one: </p><${CopyCommand} command="kubectl nodeward drain NODE" />`;
  }
  const stuck = drains.filter((one) => state.nodes[one.node]?.severity === "NeedsPerson");
  // One that needs a person is shown until another is chosen.
  const drain = state.drains[pointed] ?? state.drains[chosen] ?? stuck[0];
  const holders = new Set((drain?.blockedBy ?? []).map((one) => one.node).filter(Boolean));
  return html`
    <div class="tools"><h2>${drains.length === 1 ? "1 drain" : `${drains.length} drains`}${stuck.length > 0 ? `, ${stuck.length} for a person` : ""}</h2>
      ${stuck.length > 0 && html`<label><input type="checkbox" checked=${isStuck} onChange=${(event) => setStuck(event.currentTarget.checked)} /> Only those that need a person</label>`}
      <${Legend} /></div>
    ${state.durations && html`<p class="faint">A drain takes ${span(state.durations.medianSeconds)} from its grant here (median of ${state.durations.drains}).</p>`}
    <div class="queue">
      <${Timeline} drains=${isStuck && stuck.length ? stuck : drains} stuck=${new Set(stuck)} shown=${drain?.node ?? ""} chosen=${chosen} choose=${choose} point=${point} holders=${holders} />
      <div class="detail">${drain ? html`<${DrainDetail} drain=${drain} />` : html`<p class="faint">Choose a drain to see whom it waits for.</p>`}</div>
    </div>
    <${Budgets} budgets=${state.budgets} waits=${drain} />
    <${NodeGroups} groups=${state.nodeGroups} />`;
}

/** When each of a drain's stretches began: waiting, evicting, down. */
function stretches(drain) {
  const began = drain.startedAt ?? drain.askedAt;
  const marks = [["waits", began], ["evicts", drain.grantedAt], ["down", drain.drainedAt], ["recovers", drain.recoveringSince]];
  const told = marks.filter(([, at]) => at).map(([kind, at]) => [kind, Date.parse(at)]);
  return told.filter(([, at], index) => index === 0 || at >= told[index - 1][1]);
}

function Legend() {
  const kinds = [["waits", "waits for its turn"], ["evicts", "granted, evicting"], ["down", "may be down"], ["recovers", "recovering"]];
  return html`<p class="legend faint">${kinds.map(([kind, word]) => html`<span><span class="bar" aria-hidden="true"><span class=${`stretch ${kind}`}></span></span> ${word}</span>`)}</p>`;
}

/** One tab stop; arrow keys move among the drains. */
function Timeline({ drains, stuck, shown, chosen, choose, point, holders }) {
  useSeconds();
  const onKeyDown = (event) => {
    const buttons = [...event.currentTarget.querySelectorAll("button")];
    const at = buttons.indexOf(event.target);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -buttons.length, End: buttons.length }[event.key];
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, at + step))].focus();
  };
  const stop = drains.some((drain) => drain.node === shown) ? shown : drains[0]?.node;
  const now = clock.now();
  const first = Math.min(now - 60_000, ...drains.map((drain) => stretches(drain)[0]?.[1] ?? now));
  const place = (at) => Math.min(100, Math.max(0, (100 * (at - first)) / (now - first)));
  return html`<ol class="timeline" onKeyDown=${onKeyDown} onPointerLeave=${() => point("")}>
    ${drains.map((drain) => {
      const parts = stretches(drain);
      const kind = drain.node === shown ? "chosen" : holders.has(drain.node) ? "holder" : "";
      return html`<li key=${drain.node} class=${kind}>
        <button type="button" aria-pressed=${drain.node === chosen} tabindex=${drain.node === stop ? 0 : -1} onClick=${() => choose(drain.node === chosen ? "" : drain.node)}
          onPointerEnter=${() => point(drain.node)} onFocus=${() => point(drain.node)} onBlur=${() => point("")}>
          <span class="ticket">${drain.ticket ?? "–"}</span>
          <span class="name">${drain.node}</span>
          <span class=${`phase phase-${drain.phase ?? "Queued"}`}>${stuck.has(drain) ? html`<span class="symbol state-Blocked" aria-hidden="true">!</span>` : null}${drain.word}${stuck.has(drain) ? ", stuck" : ""}${kind === "holder" ? ", waited for" : ""}</span>
          <span class="bar" aria-hidden="true">${parts.map(([name, at], index) => {
            const end = parts[index + 1]?.[1] ?? now;
            return html`<span class=${`stretch ${name}`} ref=${(element) => {
              if (!element) return;
              element.style.left = `${place(at)}%`;
              element.style.width = `${Math.max(0.5, place(end) - place(at))}%`;
            }}></span>`;
          })}</span>
          <span class="gone">${drain.pods ? `${drain.pods.gone} of ${drain.pods.total} gone` : ""}</span>
        </button></li>`;
    })}
  </ol>`;
}

/** @param {{ drain: import("./types").Drain }} props */
function DrainDetail({ drain }) {
  const obstacles = drain.obstacles ?? [];
  const before = [...new Set((drain.blockedBy ?? []).map((one) => one.node).filter((one) => one && one !== drain.node))];
  return html`
    <h3><${NodeLink} name=${drain.node} /> ${drain.word}</h3>
    ${drain.purpose && html`<p>For: ${drain.purpose}</p>`}
    <p class="faint">Requested by ${drain.requesters?.join(", ") || (drain.phase ? "nobody any more" : "whoever created it")}</p>
    ${drain.turn && html`<p>${drain.turn}</p>`}
    ${drain.message && html`<p>${drain.message}</p>`}
    ${obstacles.length > 0 && html`<ul>${obstacles.map((one) => html`<li>${one}</li>`)}</ul>`}
    ${before.length > 0 && html`<p>Waits for ${before.map((node, index) => html`${index ? ", " : ""}<${NodeLink} name=${node} />`)}</p>`}
    ${drain.holds && drain.holds.length > 0 && html`<p>Holds ${drain.holds.map((held) => `${held.disruptions} of ${held.pdb.namespace}/${held.pdb.name}`).join(", ")}</p>`}
    ${drain.deadline && html`<p>Deadline <${Age} at=${drain.deadline} />${["Granted", "Draining"].includes(drain.phase ?? "") && ` (${drain.fallback})`}</p>`}
    ${drain.commands?.map((one) => html`<${CopyCommand} ...${one} key=${one.command} />`)}`;
}

/** @param {{ budgets: Record<string, import("./types").BudgetLocks>, waits?: import("./types").Drain }} props */
function Budgets({ budgets, waits }) {
  const wanted = new Set((waits?.blockedBy ?? []).map((one) => one.pdb));
  const rows = Object.values(budgets).sort((a, b) => Number(wanted.has(b.pdb)) - Number(wanted.has(a.pdb)) || (b.waiting?.length ?? 0) - (a.waiting?.length ?? 0));
  const [isWhole, setWhole] = useState(false);
  if (rows.length === 0) return html`<section><h2>Budgets</h2><p>No budget is held or waited for.</p></section>`;
  const shown = isWhole ? rows : rows.slice(0, 100);
  return html`<section><h2>Budgets that are held or waited for</h2><div class="scroll"><table>
    <thead><tr><th scope="col">Budget</th><th scope="col">Allows</th><th scope="col">Held by</th><th scope="col">Waited for by</th><th scope="col">Its owner</th></tr></thead>
    <tbody>${shown.map((budget) => html`<tr key=${budget.pdb} class=${wanted.has(budget.pdb) ? "holder" : ""}>
      <th scope="row">${budget.pdb}</th>
      <td>${budget.status ? `${budget.status.disruptionsAllowed}: ${budget.status.currentHealthy} of ${budget.status.expectedPods} healthy, at least ${budget.status.desiredHealthy}` : "not readable"}</td>
      <td>${(budget.held ?? []).map((held) => html`<div>${held.disruptions} by <${NodeLink} name=${held.node} /> for <${Lasts} since=${held.since} />${held.state === "Suspect" ? ", suspect" : ""}</div>`)}</td>
      <td>${(budget.waiting ?? []).slice(0, 5).map((one) => html`<div><${NodeLink} name=${one.node} /> (ticket ${one.ticket})</div>`)}${budget.waiting && budget.waiting.length > 5 ? `and ${budget.waiting.length - 5} more` : ""}</td>
      <td>${(budget.ownerHolds ?? []).map((hold) => html`<div>holds ${hold.disruptions ?? "all"}: ${hold.reason}${hold.until ? html`, ends <${Age} at=${hold.until} />` : ""}</div>`)}</td>
    </tr>`)}</tbody></table></div>
    ${rows.length > 100 && html`<button type="button" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show fewer" : `Show all ${rows.length}`}</button>`}</section>`;
}

/** @param {{ groups: import("./types").State["nodeGroups"] }} props */
function NodeGroups({ groups }) {
  const away = groups?.away ?? [];
  const waiting = groups?.waiting ?? [];
  if (away.length === 0 && waiting.length === 0) return null;
  return html`<section><h2>Node groups</h2><ul>
    ${away.map((one) => html`<li>${one.group}: <${NodeLink} name=${one.node} /> is away for <${Lasts} since=${one.since} /> (ticket ${one.ticket})</li>`)}
    ${waiting.map((one) => html`<li><${NodeLink} name=${one.node} /> waits: ${one.message}</li>`)}
  </ul></section>`;
}
