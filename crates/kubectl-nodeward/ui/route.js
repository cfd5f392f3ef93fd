// The view and its options, in the address: `#/fleet?group=zone&search=db`.

import { useEffect, useState } from "./hooks.js";

/** @typedef {{ view: string, subject: string, options: URLSearchParams }} Route */

/** @returns {Route} */
function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: view || "fleet", subject: decodeURIComponent(rest.join("/")), options: new URLSearchParams(query ?? "") };
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const onChange = () => setRoute(read());
    addEventListener("hashchange", onChange);
    // It may have changed since the first rendering.
    onChange();
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return route;
}

/** Changes options of the view at hand; empty ones go. @param {Record<string, string>} changes */
export function setOptions(changes) {
  const { view, subject, options } = read();
  for (const [name, value] of Object.entries(changes)) {
    if (value) options.set(name, value);
    else options.delete(name);
  }
  const query = options.toString();
  const path = subject ? `${view}/${encodeURIComponent(subject)}` : view;
  history.replaceState(null, "", `#/${path}${query ? `?${query}` : ""}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
