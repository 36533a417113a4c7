// All kernels at a glance: what they do, what they take, who holds them; and ending those nobody wants.

import { interrupt, recycle } from "./acts.js";
import { cellName, count, headline, html, plural, signal, size, view } from "./lib.js";
import { Countdown, Curve, Elapsed, Empty, Since, State, stateOf } from "./parts.js";
import { kernels, ofAll, samplesOf, servers } from "./store.js";

export const chosen = signal(new Set());
const cursor = signal(null);

const isDisconnected = (kernel) => !kernel.lease_count && !kernel.attached_clients.length;
const isIdle = (kernel) => stateOf(kernel) === "idle" || stateOf(kernel) === "stopped";
const RULES = [
  ["all", "All", () => true],
  ["idle", "Idle", isIdle],
  ["disconnected", "Disconnected", isDisconnected],
];
const STANDINGS = { unbound: "never opened its stream", stream_lost: "lost its stream" };

const isAlert = (lease) => lease.standing in STANDINGS;
const mains = () => kernels.value.filter((kernel) => !kernel.home);

let place = 0;

/** Whoever comes back finds the rows where they were. */
const keepPlace = (element) => {
  if (!element || element.onscroll) return;
  element.scrollTop = place;
  element.onscroll = () => (place = element.scrollTop);
};

export const Fleet = view(() => {
  const all = kernels.value;
  if (all === null) return html`<div class="loading" role="status">Looking for kernels…</div>`;
  const there = new Set(all.map((kernel) => kernel.resource_id));
  const picked = all.filter((kernel) => chosen.value.has(kernel.resource_id) && there.has(kernel.resource_id));
  const many = servers.value.length > 1 || servers.value[0]?.many;
  return html`<main class="fleet" aria-label="Fleet" ref=${keepPlace}>
    <h1 class="hidden">Fleet</h1>
    <${Summary} all=${all} />
    ${all.length ? html`<${Selection} picked=${picked} />` : null}
    ${many
      ? servers.value.map((server) => html`<${ServerSection} key=${server.id} server=${server} kernels=${all.filter((k) => k.server === server.id)} />`)
      : all.length
        ? html`<${Table} kernels=${all} />`
        : html`<${Nothing} />`}
  </main>`;
});

function Nothing() {
  if (ofAll.value) {
    return html`<${Empty} title="No server runs">
      <p>An MCP host starts one of its own; this starts one that several hosts can share:</p>
      <pre>loommux --server</pre>
    <//>`;
  }
  const health = servers.value[0]?.health;
  const url = `${location.origin}${health?.mcp_path ?? "/mcp"}`;
  return html`<${Empty} title="No kernels yet">
    <p>A kernel opens with an agent’s first call. Point an MCP host at this server:</p>
    <pre>${health?.token_needed ? `loommux install --http ${url} --token-file ~/.config/loommux/token` : `claude mcp add --transport http loommux ${url}`}</pre>
    <p class="quiet">Then this page shows what it runs, as it runs.</p>
  <//>`;
}

function Summary({ all }) {
  const busy = all.filter((kernel) => stateOf(kernel) === "busy").length;
  const bad = all.filter((kernel) => ["unresponsive", "orphaned"].includes(stateOf(kernel))).length;
  const alerts = all.reduce((sum, kernel) => sum + kernel.leases.filter(isAlert).length, 0);
  const children = all.filter((kernel) => kernel.home).length;
  const sum = (key) => all.reduce((total, kernel) => total + (kernel[key] ?? 0), 0);
  const facts = [
    [count(all.length - children), all.length - children === 1 ? "kernel" : "kernels", ""],
    [count(children), children === 1 ? "child" : "children", ""],
    [count(busy), "busy", busy ? "is-busy" : ""],
    [count(sum("execution_count")), "executions", ""],
    [size(sum("rss_bytes")), "memory", ""],
    [`${Math.round(sum("cpu_percent"))} %`, "CPU", ""],
    ...(bad ? [[count(bad), "in trouble", "is-unresponsive"]] : []),
    ...(alerts ? [[count(alerts), alerts === 1 ? "lease alert" : "lease alerts", "is-error"]] : []),
  ];
  return html`<dl class="summary">${facts.map(([value, name, state]) => html`<div class=${state}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Selection({ picked }) {
  const choose = (rule) => () => (chosen.value = new Set(mains().filter(rule).map((kernel) => kernel.resource_id)));
  return html`<div class="bar selection" role="toolbar" aria-label="Selection">
    <span class="quiet">Select</span>
    ${RULES.map(([key, label, rule]) => html`<button key=${key} onClick=${choose(rule)}>${label}</button>`)}
    ${picked.length
      ? html`<button onClick=${() => (chosen.value = new Set())}>None</button>
          <span class="spacer"></span>
          <span>${picked.length} selected</span>
          <button class="danger" onClick=${() => recycle(picked)}>Recycle…</button>`
      : null}
  </div>`;
}

function ServerSection({ server, kernels }) {
  const { health } = server;
  return html`<section class="server">
    <h2><span class="tag">${health?.transport ?? "http"}</span> ${health?.workspace ?? server.id} ${" "}
      <span class="quiet">pid ${health?.pid ?? "–"}${server.error ? ` · ${server.error.message}` : ""}</span></h2>
    ${kernels.length ? html`<${Table} kernels=${kernels} />` : html`<p class="quiet none">No kernels.</p>`}
  </section>`;
}

const Table = ({ kernels }) => html`<table class="kernels">
  <thead><tr>
    <th class="pick"><span class="hidden">Selected</span></th><th>Kernel</th><th>State</th><th class="doing">Cell</th>
    <th class="gauge">Memory</th><th class="gauge">CPU</th><th class="held">Held by</th><th class="kept">Kept</th>
  </tr></thead>
  <tbody>${kernels.map((kernel) => html`<${Row} key=${kernel.resource_id} kernel=${kernel} />`)}</tbody>
</table>`;

const Row = view(({ kernel }) => {
  const id = kernel.resource_id;
  const state = stateOf(kernel);
  const alert = kernel.leases.some(isAlert);
  const picked = chosen.value.has(id);
  const pick = () => toggle(id);
  const open = (event) => {
    if (!event.target.closest("a, button, input, label")) location.hash = `#/kernel/${id}`;
  };
  const marks = `${kernel.home ? "child" : "main"} ${alert ? "alert" : ""} ${picked ? "picked" : ""} ${cursor.value === id ? "cursor" : ""}`;
  return html`<tr class=${marks} data-kernel=${id} onClick=${open}>
    <td class="pick"><label><input type="checkbox" checked=${picked} onChange=${pick} aria-label=${`Select ${kernel.name}`} /></label></td>
    <td class="name"><a href=${`#/kernel/${id}`} title=${kernel.name}>${kernel.name}</a><span class="quiet">${plural(kernel.execution_count, "cell")}</span></td>
    <td class="what"><${State} state=${state} /><${Unheard} kernel=${kernel} /></td>
    <td class="doing"><${Doing} kernel=${kernel} /></td>
    <td class="gauge">${size(kernel.rss_bytes)}<${Curve} values=${samplesOf(id).rss} least=${0.6 * Math.min(...samplesOf(id).rss)} label="Memory" /></td>
    <td class="gauge">${kernel.cpu_percent == null ? "–" : `${Math.round(kernel.cpu_percent)} %`}<${Curve} values=${samplesOf(id).cpu} most=${100} label="CPU" /></td>
    <td class="held"><${Holders} kernel=${kernel} /></td>
    <td class="kept"><${Kept} kernel=${kernel} /></td>
  </tr>`;
});

/** Why a process does nothing: native code holds the interpreter, or an earlier cell's leavings the main thread. */
const Unheard = ({ kernel }) =>
  kernel.stale_seconds == null
    ? kernel.held_at && html`<span class="hint">held at ${kernel.held_at}</span>`
    : html`<span class="hint">${kernel.busy ? "native code holds Python, " : ""}<${Elapsed} seconds=${kernel.stale_seconds} seen=${kernel.seen} /></span>`;

function Doing({ kernel }) {
  const cell = kernel.current_execution ?? kernel.recent_execution;
  if (!cell) return html`<span class="quiet">nothing yet</span>`;
  const runs = kernel.current_execution !== null;
  const to = `#/kernel/${kernel.resource_id}/${kernel.process}.${cell.execution ?? ""}`;
  return html`<div class=${runs ? "cell runs" : "cell"}>
    <a class="number" href=${to}>${cellName(cell)}</a>
    ${runs ? html`<${Elapsed} seconds=${cell.elapsed_seconds} seen=${kernel.seen} />` : html`<span class=${`end is-${cell.state}`}>${cell.state}</span>`}
    <code>${headline(cell.source)}</code>
    ${runs && cell.last_line ? html`<samp>${cell.last_line}</samp>` : null}
    ${runs ? html`<button class="small" onClick=${() => interrupt(kernel)} aria-label=${`Interrupt ${cellName(cell)} of ${kernel.name}`}>Interrupt</button>` : null}
  </div>`;
}

function Holders({ kernel }) {
  const names = [
    ...kernel.leases.map(
      (lease) => html`<span class=${`lease ${isAlert(lease) ? "is-error" : ""} ${lease.held ? "" : "quiet"}`} title=${lease.client_address ?? ""}>
        <bdi>${lease.holder || "session"}</bdi> <span class="quiet">${STANDINGS[lease.standing] ?? lease.standing?.replace("_", " ") ?? lease.mode}</span>
        ${lease.remaining_seconds != null && html` <${Countdown} seconds=${lease.remaining_seconds} seen=${kernel.seen} />`}</span>`,
    ),
    ...kernel.attached_clients.map((client) => html`<span class="lease"><span class="tag">attached</span> ${client}</span>`),
  ];
  return names.length ? names : html`<span class="quiet">${kernel.home ? "its home" : "nobody"}</span>`;
}

function Kept({ kernel }) {
  if (kernel.retention_remaining_seconds != null) return html`<${Countdown} seconds=${kernel.retention_remaining_seconds} seen=${kernel.seen} />`;
  return kernel.idle_since ? html`<span class="quiet">idle <${Since} at=${kernel.idle_since} /></span>` : null;
}

function toggle(id) {
  const next = new Set(chosen.value);
  if (!next.delete(id)) next.add(id);
  chosen.value = next;
}

/** Keys of this screen; true when the key was one. */
export function keys(key) {
  const ids = (kernels.value ?? []).map((kernel) => kernel.resource_id);
  const here = ids.indexOf(cursor.value);
  const kernel = kernels.value?.[here];
  if (key === "j" || key === "ArrowDown") moveTo(ids[Math.min(ids.length - 1, here + 1)]);
  else if (key === "k" || key === "ArrowUp") moveTo(ids[Math.max(0, here - 1)]);
  else if (key === "Enter" && kernel) location.hash = `#/kernel/${kernel.resource_id}`;
  else if (key === "x" && kernel) toggle(kernel.resource_id);
  else if (key === "i" && kernel) interrupt(kernel);
  else if (key === "Delete" && chosen.value.size) recycle(kernels.value.filter((one) => chosen.value.has(one.resource_id)));
  else return false;
  return true;
}

function moveTo(id) {
  cursor.value = id ?? null;
  requestAnimationFrame(() => document.querySelector("tr.cursor")?.scrollIntoView({ block: "nearest" }));
}
