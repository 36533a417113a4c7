// What clients ask and what comes of it, as it happens: newest first, nothing to do here but read.

import { at, cellName, html, signal, span, view } from "./lib.js";
import { Elapsed, Empty } from "./parts.js";
import { events, servers } from "./store.js";

const KINDS = [
  ["calls", "Calls", (row) => row.call !== undefined],
  ["cells", "Cells", (row) => row.kind.startsWith("execution_")],
  ["notices", "Notices", (row) => row.kind === "notice"],
  ["kernels", "Kernels and leases", (row) => /^(kernel|lease)_/.test(row.kind)],
  ["all", "Everything", () => true],
];
const SHOWN = 300;
const shownKind = signal("calls");

/** Events as rows: a call and its end are one. */
export function rowsOf(list) {
  const rows = [];
  const calls = new Map();
  for (const event of list) {
    const key = event.call && `${event.server ?? ""}/${event.call}`;
    if (event.kind === "call_ended" && calls.has(key)) {
      const row = calls.get(key);
      Object.assign(row, { ...event, at: row.at, ended: event.at });
      continue;
    }
    const row = { ...event };
    if (event.kind === "call_began") calls.set(key, row);
    rows.push(row);
  }
  return rows.reverse();
}

export const Activity = view(() => {
  const rows = rowsOf(events.value);
  const rule = KINDS.find(([key]) => key === shownKind.value)[2];
  const shown = rows.filter(rule).slice(0, SHOWN);
  const off = servers.value.some((server) => server.health?.activity_feed === false);
  return html`<main class="activity" aria-label="Activity">
    <h1 class="hidden">Activity</h1>
    <div class="bar" role="toolbar" aria-label="What is shown">
      ${KINDS.map(([key, label]) => html`<button key=${key} aria-pressed=${String(shownKind.value === key)} onClick=${() => (shownKind.value = key)}>${label}</button>`)}
    </div>
    ${off && html`<p class="note">Calls are not shown: <code>activity_feed = False</code> in this server’s config.py.</p>`}
    ${shown.length
      ? html`<table class="feed"><thead><tr><th>Time</th><th>Who</th><th>What</th><th>Where</th><th class="num">Took</th><th>What came back</th></tr></thead>
          <tbody>${shown.map((row) => html`<${Row} key=${`${row.at}/${row.kind}/${row.call ?? row.serial ?? ""}`} row=${row} />`)}</tbody></table>`
      : html`<${Empty} title="Nothing has happened yet"><p class="quiet">Tool calls, cells and notices appear here the moment they happen.</p><//>`}
  </main>`;
});

function Row({ row }) {
  const [who, what, took, result, state] = wordsOf(row);
  return html`<tr class=${`event ${state}`}>
    <td class="time">${at(row.at)}</td>
    <td class="who">${who}</td>
    <td class="tool">${what}</td>
    <td class="where">${row.kernel ? html`<a href=${`#/kernel/${row.kernel}`}>${row.name}</a>` : null}</td>
    <td class="num">${took}</td>
    <td class="result">${result}</td>
  </tr>`;
}

function wordsOf(row) {
  switch (row.kind) {
    case "call_began":
      return [row.caller, row.tool, html`<${Elapsed} seconds=${0} seen=${row.at} />`, "…", "is-running"];
    case "call_ended":
      return [row.caller, row.tool, span(row.seconds), row.result, row.ok ? "" : "is-error"];
    case "execution_started":
      return [whoOf(row), html`started ${linkTo(row)}`, null, html`<code>${row.source}</code>`, "quieter"];
    case "execution_ended":
      return [whoOf(row), html`ended ${linkTo(row)}`, null, row.state, `quieter ${row.state === "completed" ? "" : "is-error"}`];
    case "notice":
      return [row.label || (row.execution ? `In [${row.execution}]` : "environment"), "notice", null, row.text, "is-notice"];
    case "lease_alert":
      return [row.holder, "lease alert", null, row.standing, "is-error"];
    default:
      return [row.holder ?? "", row.kind.replaceAll("_", " "), null, row.reason ?? row.why ?? "", "quieter"];
  }
}

const whoOf = (row) => (row.origin.kind === "console" ? "console" : row.origin.label || row.origin.kind);

const linkTo = (row) =>
  row.execution == null ? "a cell" : html`<a href=${`#/kernel/${row.kernel}/${row.process}.${row.execution}`}>${cellName(row)}</a>`;
