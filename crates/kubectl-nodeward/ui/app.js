// The page: what is old or not readable, the views, and the one that is open.

import { render } from "./preact.js";
import { useEffect, useRef } from "./hooks.js";
import { Age, html, useKeptFocus, useSeconds } from "./view.js";
import { begin, store, useStore } from "./state.js";
import { useRoute } from "./route.js";
import { Fleet } from "./fleet.js";
import { Queue } from "./queue.js";
import { NodePage } from "./node.js";
import { Health } from "./health.js";
import { Ceph } from "./ceph.js";
import { Log } from "./log.js";

const VIEWS = [
  { name: "fleet", title: "Fleet", view: Fleet },
  { name: "queue", title: "Queue", view: Queue },
  { name: "node", title: "Node", view: NodePage },
  { name: "health", title: "Health", view: Health },
  { name: "ceph", title: "Ceph", view: Ceph },
  { name: "log", title: "Log", view: Log },
];

/** What is shown may be old: since when, and why. */
function Banner() {
  useSeconds();
  const { state, trouble } = store;
  const snapshot = state?.source?.snapshot;
  const stale = state?.source?.stale;
  if (snapshot) {
    return html`<p class="banner kept" role="status">A kept moment: ${snapshot}. Nothing here changes.</p>`;
  }
  if (!trouble && !stale) return null;
  // The age changes each second; it is read out to nobody who did not ask.
  return html`<div class="banner">
    <strong>Old:</strong> ${" "}${state ? html`what is shown is of <${Age} at=${stale?.since ?? new Date(store.heard).toISOString()} />` : "nothing was read yet"}.
    ${" "}<span role="alert">${stale?.message ?? trouble}. It is tried again by itself.</span>
  </div>`;
}

/** Components that do not work, or are paused: whatever else is shown rests on what they said before. */
function Trouble({ components }) {
  const bad = components?.filter((one) => one.style === "Bad" || one.style === "Warning") ?? [];
  if (bad.length === 0) return null;
  return html`<ul class="trouble" aria-label="Components that do not work or are paused">${bad.map((one) => html`<li>${one.text}</li>`)}</ul>`;
}

function Components({ components }) {
  if (!components?.length) return html`<p class="warn">No component of Nodeward was found in this cluster.</p>`;
  return html`<ul class="components" aria-label="Components">
    ${components.map((one) => html`<li class=${`text-${one.style}`}>${one.text}</li>`)}
  </ul>`;
}

function Unread({ unread }) {
  if (!unread?.length) return null;
  return html`<details class="unread"><summary>${unread.length} not shown</summary>
    <ul>${unread.map((one) => html`<li>${one.text}</li>`)}</ul></details>`;
}

function App() {
  const { state } = useStore();
  const route = useRoute();
  useKeptFocus();
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  const open = VIEWS.find((one) => one.name === route.view) ?? VIEWS[0];
  useEffect(() => {
    document.title = `${open.title} – Nodeward`;
  }, [open.name]);
  const source = state?.source;
  const worst = state ? Object.values(state.nodes).filter((node) => node.severity === "NeedsPerson").length : 0;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); heading.current?.focus(); }}>To the content</a>
    <header>
      <h1>Nodeward</h1>
      ${source && html`<span class="cluster" title=${source.user ? `as ${source.user}` : undefined}>${source.cluster}</span>`}
      <nav aria-label="Views">${VIEWS.map((one) => html`<a href=${`#/${one.name}`} aria-current=${one === open ? "page" : undefined}>${one.title}${
        one.name === "fleet" && worst > 0 ? html` <span class="count" aria-label=${`${worst} need a person`}>${worst}</span>` : null}</a>`)}</nav>
    </header>
    <${Banner} />
    <${Trouble} components=${state?.components} />
    <main id="main" tabindex="-1" ref=${heading}>
      ${state ? html`<${open.view} state=${state} route=${route} />` : html`<p class="pad">Reading the cluster…</p>`}
    </main>
    ${state && html`<footer><${Components} components=${state.components} /><${Unread} unread=${state.unread} />
      <p class="faint">Read-only, with the rights of ${source?.user ?? "this kubeconfig"}; kubectl nodeward ${source?.version}</p></footer>`}`;
}

begin();
const root = document.getElementById("app");
if (root) {
  root.textContent = "";
  render(html`<${App} />`, root);
}
