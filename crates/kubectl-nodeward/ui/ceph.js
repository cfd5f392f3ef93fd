// The Ceph clusters: which failure domain may go down, and what keeps the others from it.

import { Age, Badge, Lasts, NodeLink, html } from "./view.js";

/** @param {{ state: import("./types").State, route: import("./route.js").Route }} props */
export function Ceph({ state }) {
  const clusters = Object.values(state.cephClusters);
  if (clusters.length === 0) return html`<h2>No Ceph cluster</h2><p>ceph-pdb tells of none, or it may not be read; see below.</p>`;
  return clusters.map((cluster) => html`<${Cluster} cluster=${cluster} nodes=${state.nodes} key=${cluster.namespace} />`);
}

/** @param {{ cluster: import("./types").CephCluster, nodes: import("./types").State["nodes"] }} props */
function Cluster({ cluster, nodes }) {
  const { disruptions, failureDomainType: kind = "failure domain", since, statisticsFreshSince: fresh } = cluster.state ?? {};
  return html`<section>
    <h2>${cluster.name} ${disruptions && html`<span class=${`phase text-${cluster.style}`}>${disruptions}</span>`}</h2>
    <p class=${`text-${cluster.style}`}>${cluster.sentence}</p>
    ${since && html`<p class="faint">For <${Lasts} since=${since} />; statistics ${fresh ? html`fresh for <${Lasts} since=${fresh} />` : "not fresh"}</p>`}
    ${cluster.conditions.length > 0 && html`<ul class="warn">${cluster.conditions.map((one) => html`<li>The cluster ${one.sentence} (<${Age} at=${one.since} />)</li>`)}</ul>`}
    ${cluster.domains.length > 0 && html`<ul class="domains" aria-label=${`By ${kind}`}>${cluster.domains.map((domain) => html`<li key=${domain.name} class=${domain.down.length ? "down" : domain.exempt ? "exempt" : ""}>
      <h3>${domain.name || "of an unknown domain"}</h3>
      <p>${domain.down.length ? `down: ${domain.down.map((osd) => `osd.${osd}`).join(", ")}` : "all OSDs up"}</p>
      ${domain.exempt && html`<p><strong>may be evicted</strong></p>`}
      ${domain.noout && html`<p>noout for <${Lasts} since=${domain.noout} /></p>`}
      ${domain.nodes.map((node) => html`<p><${NodeLink} name=${node} /> ${nodes[node] && nodes[node].state !== "Ready" ? html`<${Badge} state=${nodes[node].state} />` : null}</p>`)}
    </li>`)}</ul>`}
  </section>`;
}
