// The NodeHealthChecks: healthy nodes against their threshold, countdowns, steps, and what stops them.

import { Age, Lasts, NodeLink, clock, html, useSeconds } from "./view.js";

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function Health({ state }) {
  const checks = Object.values(state.healthChecks);
  if (checks.length === 0) return html`<h2>No NodeHealthCheck</h2><p>Either there is none, or they may not be read; see below.</p>`;
  return checks.map((check) => html`<${Check} check=${check} key=${check.name} />`);
}

/** From when a condition counts against the node. */
function Counts({ from }) {
  useSeconds();
  if (Date.parse(from) > clock.now()) return html`counts <${Age} at=${from} />`;
  return html`has counted for <${Lasts} since=${from} />`;
}

/** @param {{ check: import("./types").HealthCheck }} props */
function Check({ check }) {
  const limits = [check.minHealthy && `at least ${check.minHealthy} must be healthy`, check.maxUnhealthy && `at most ${check.maxUnhealthy} may be unhealthy`].filter(Boolean);
  return html`<section class="check">
    <h2>${check.name} <span class=${`phase check-${check.phase}`}>${check.phase ?? "unanswered"}</span>${check.dryRun ? html` <span class="phase">dry run</span>` : null}</h2>
    ${check.observed != null && html`<p>${check.healthy} of ${check.observed} nodes are healthy${limits.length ? `; ${limits.join(", ")}` : ""}
      <meter min="0" max=${check.observed || 1} value=${check.healthy ?? 0} aria-label=${`${check.healthy} of ${check.observed} nodes are healthy`}></meter></p>`}
    ${check.reason && html`<p>${check.reason}</p>`}
    ${check.nodes && check.nodes.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label=${`Unhealthy nodes of ${check.name}`}><table>
      <thead><tr><th scope="col">Node</th><th scope="col">Condition</th><th scope="col">State</th><th scope="col">Stopped by</th><th scope="col">Step</th><th scope="col">Next</th></tr></thead>
      <tbody>${check.nodes.map((one) => html`<tr key=${one.node}>
        <th scope="row"><${NodeLink} name=${one.node} /></th>
        <td>${one.condition && html`${one.condition.type} is ${one.condition.status} for <${Lasts} since=${one.condition.since} />; <${Counts} from=${one.condition.expires} />`}</td>
        <td>the node ${one.sentence}</td>
        <td>${(one.stoppedBy ?? []).map((stop) => html`<div>${stop.detail} [${stop.reason}]${stop.until ? html`, ends <${Age} at=${stop.until} />` : ""}</div>`)}</td>
        <td>${one.step && html`${one.step.number} of ${one.step.of}: ${one.step.remediation}${one.step.ends ? html`, times out <${Age} at=${one.step.ends} />` : ""}`}</td>
        <td>${one.next && html`step ${one.next.number}: ${one.next.template}${one.next.at ? html` <${Age} at=${one.next.at} />` : ""}`}</td>
      </tr>`)}</tbody></table></div>`}
  </section>`;
}
