// One kernel: its executions newest first, the one that is looked at, variables, notices.

import * as acts from "./acts.js";
import { meant, withKernel } from "./addresses.js";
import { ask } from "./api.js";
import { Cell } from "./cell.js";
import { List } from "./list.js";
import { Component, addressOf, at, headline, html, plural, size, view } from "./lib.js";
import { Countdown, Curve, Elapsed, Empty, Since, State, stateOf } from "./parts.js";
import { childrenOf, kernelOf, kernels, onEvent, samplesOf, servers } from "./store.js";
import { Variables } from "./variables.js";

const TABS = [
  ["cells", "Cells"],
  ["variables", "Variables"],
  ["notices", "Notices"],
];

/** {process, number, serial} of an address like 7, 2.7, s12 or 2.s12. */
export function parsed(address, kernel) {
  const found = /^(?:(\d+)\.)?(s)?(\d+)$/.exec(address ?? "");
  if (!found) return null;
  const [, process, isSerial, value] = found;
  return {
    process: process ? Number(process) : (kernel.process ?? kernel.processes[0]?.process),
    number: isSerial ? undefined : Number(value),
    serial: isSerial ? Number(value) : undefined,
  };
}

export const KernelPage = view(({ route }) => {
  if (kernels.value === null) return html`<div class="loading" role="status">Looking for the kernel…</div>`;
  const [kernel, ...others] = meant(route.kernel);
  if (!kernel) {
    return html`<main class="empty" aria-label="Kernel"><h1>There is no such kernel</h1>
      <p>No kernel is called <bdi>${route.kernel}</bdi> now. It was renamed or recycled, its lease ran out, or its server was restarted.</p><p><a href="#/">All kernels</a></p></main>`;
  }
  if (others.length) return html`<${Choice} name=${route.kernel} kernels=${[kernel, ...others]} />`;
  return html`<${Page} key=${kernel.resource_id} kernel=${kernel} route=${route} />`;
});

/** Several have the name: a person chooses, and the rest of the address holds for the one that is chosen. */
const Choice = view(({ name, kernels: found }) => {
  const whose = (kernel) => servers.value.find((one) => one.id === kernel.server)?.health;
  return html`<main class="choice" aria-label="Kernels of one name">
    <h1>${plural(found.length, "kernel")} ${found.length === 1 ? "is" : "are"} called <bdi>${name}</bdi></h1>
    <p class="quiet">Choose one. Its own address, by id, always means that one.</p>
    <ul>${found.map((kernel) => html`<li key=${kernel.resource_id}><a href=${withKernel(location.hash, kernel.resource_id)}>
      <b><bdi>${kernel.path ?? kernel.name}</bdi></b> <${State} state=${stateOf(kernel)} />
      <span class="quiet">${plural(kernel.execution_count, "cell")} · opened ${at(kernel.opened_at)}</span>
      <span class="quiet path">${kernel.home ? html`child of <bdi>${kernelOf(kernel.home)?.name}</bdi> · ` : null}${whose(kernel)?.workspace ?? ""}${servers.value.length > 1 ? ` · ${whose(kernel)?.transport ?? "http"} server, pid ${whose(kernel)?.pid ?? "–"}` : ""}</span>
      <${LastCell} kernel=${kernel} />
    </a></li>`)}</ul>
  </main>`;
});

function LastCell({ kernel }) {
  const cell = kernel.current_execution ?? kernel.recent_execution;
  return cell ? html`<code>${headline(cell.source)}</code>` : html`<span class="quiet">nothing has run</span>`;
}

class Page extends Component {
  state = { notices: [], newest: null };

  componentDidMount() {
    this.read();
    this.stop = onEvent((kind, data) => {
      if (kind === "missed" || (kind === "notice" && data.kernel === this.props.kernel.resource_id)) this.read();
    });
  }

  componentWillUnmount() {
    this.stop();
  }

  async read() {
    const { base, resource_id } = this.props.kernel;
    try {
      this.setState(await ask(base, `/api/resources/${resource_id}/notices?limit=100`));
    } catch {
      // the next notice tries again; until then the page shows what it has
    }
  }

  go(part, query = {}) {
    const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    location.hash = `#/kernel/${this.props.kernel.resource_id}${part}${given.size ? `?${given}` : ""}`;
  }

  render({ kernel, route }, { notices, newest }) {
    const tab = route.query.tab ?? "cells";
    return html`<main class=${`kernel ${route.cell ? "has-cell" : ""}`} aria-label=${`Kernel ${kernel.name}`}>
      <${Head} kernel=${kernel} />
      <nav class="tabs pages" aria-label="Views">
        ${TABS.map(([key, label]) => html`<button key=${key} aria-pressed=${String(tab === key)} onClick=${() => this.go("", key === "cells" ? {} : { tab: key })}>
          ${label}${key === "notices" && notices.length ? html` <span class="quiet">${notices.length}</span>` : null}</button>`)}
      </nav>
      ${tab === "variables" && html`<${Variables} kernel=${kernel} />`}
      ${tab === "notices" && html`<${Notices} kernel=${kernel} notices=${notices} />`}
      ${tab === "cells" && this.cells(kernel, route, notices, newest)}
    </main>`;
  }

  cells(kernel, route, notices, newest) {
    const which = parsed(route.cell, kernel) ?? newest;
    const address = which && addressOf({ ...which, execution: which.number });
    const stream = route.query.stream ?? "combined";
    const said = which && notices.filter((one) => one.process === which.process && one.serial != null && (which.number ? one.execution === which.number : one.serial === which.serial));
    const setStream = (name) => this.go(`/${address}`, { stream: name === "combined" ? null : name });
    const found = (cell) => this.setState({ newest: cell && { process: cell.process, number: cell.execution ?? undefined, serial: cell.execution == null ? cell.serial : undefined } });
    return html`<div class="split">
      <${List} kernel=${kernel} address=${address} wanted=${route.cell ? which : null} newest=${found} open=${(cell) => this.go(`/${addressOf(cell)}`)} />
      <div class="detail">
        <a class="back" href=${`#/kernel/${kernel.resource_id}`}>← All cells</a>
        ${which
          ? html`<${Cell} key=${`${address}/${stream}`} kernel=${kernel} ...${which} address=${address} stream=${stream} setStream=${setStream} line=${route.line} notices=${said} />`
          : html`<${Empty} title="Nothing has run here yet"><p class="quiet">The first cell appears here as it runs.</p><//>`}
      </div>
    </div>`;
  }
}

const Head = view(({ kernel }) => {
  const home = kernel.home && kernelOf(kernel.home);
  const running = kernel.current_execution;
  const curves = samplesOf(kernel.resource_id);
  const server = servers.value.find((one) => one.id === kernel.server);
  return html`<header class="kernelhead">
    <div class="title">
      ${home && html`<a href=${`#/kernel/${home.resource_id}`}>${home.name}</a><span class="quiet">/</span>`}
      <h1 title=${kernel.name}>${kernel.name}</h1>
      <${State} state=${stateOf(kernel)} />
      ${running && html`<${Elapsed} seconds=${running.elapsed_seconds} seen=${kernel.seen} />`}
      ${kernel.stale_seconds != null && html`<span class="hint">has not answered for <${Elapsed} seconds=${kernel.stale_seconds} seen=${kernel.seen} />${kernel.busy ? ": native code holds Python" : ""}</span>`}
      ${kernel.held_at && html`<span class="hint">held by what an earlier cell left running, at ${kernel.held_at}</span>`}
      ${kernel.idle_since && html`<span class="quiet">for <${Since} at=${kernel.idle_since} /></span>`}
    </div>
    <div class="acts" role="toolbar" aria-label="Kernel">
      <button onClick=${() => acts.interrupt(kernel)} disabled=${!running} title="i">Interrupt</button>
      <button onClick=${() => acts.restart(kernel)} title="r">Restart</button>
      <button onClick=${() => acts.rename(kernel)}>Rename</button>
      <button onClick=${() => acts.attach(kernel)}>Attach</button>
      <button onClick=${() => acts.configure(kernel)}>MCP config</button>
      <button onClick=${() => acts.exportNotebook(kernel)}>Export .ipynb</button>
      <button class="danger" onClick=${() => acts.recycle([kernel])}>Recycle</button>
    </div>
    <dl class="facts">
      <div><dt>process</dt><dd>${kernel.process ?? "–"} <span class="quiet">pid ${kernel.kernel_pid ?? "–"}</span></dd></div>
      <div><dt>memory</dt><dd>${size(kernel.rss_bytes)} <${Curve} values=${curves.rss} least=${0.6 * Math.min(...curves.rss)} label="Memory" /></dd></div>
      <div><dt>CPU</dt><dd>${kernel.cpu_percent == null ? "–" : `${Math.round(kernel.cpu_percent)} %`} <${Curve} values=${curves.cpu} most=${100} label="CPU" /></dd></div>
      <div><dt>held by</dt><dd><${Holders} kernel=${kernel} /></dd></div>
      ${kernel.retention_remaining_seconds != null && html`<div><dt>kept for</dt><dd><${Countdown} seconds=${kernel.retention_remaining_seconds} seen=${kernel.seen} /></dd></div>`}
      <${Children} kernel=${kernel} />
      ${server?.health?.workspace && html`<div><dt>workspace</dt><dd class="path">${server.health.workspace}</dd></div>`}
    </dl>
  </header>`;
});

function Holders({ kernel }) {
  const names = kernel.leases.map((lease) => {
    const alert = ["unbound", "stream_lost"].includes(lease.standing);
    return html`<span class=${alert ? "lease is-error" : "lease"}><bdi>${lease.holder || "session"}</bdi> <span class="quiet">${lease.mode}${lease.standing ? `, ${lease.standing.replace("_", " ")}` : ""}</span>
      ${lease.remaining_seconds != null && html` <${Countdown} seconds=${lease.remaining_seconds} seen=${kernel.seen} />`}</span>`;
  });
  const clients = kernel.attached_clients.map((client) => html`<span class="lease"><span class="tag">attached</span> ${client}</span>`);
  return [...names, ...clients].length ? [...names, ...clients] : html`<span class="quiet">${kernel.home ? "its home" : "nobody"}</span>`;
}

function Children({ kernel }) {
  const children = childrenOf(kernel);
  if (!children.length) return null;
  return html`<div><dt>children</dt><dd class="names-list">${children.map((child) => html`<a key=${child.resource_id} href=${`#/kernel/${child.resource_id}`} title=${child.name}>${child.name}</a>`)}</dd></div>`;
}

function Notices({ kernel, notices }) {
  if (!notices.length) {
    return html`<${Empty} title="No notices"><p class="quiet">What code tells the agent with <code>loommux.notify(…)</code>, and what the environment says, stands here.</p><//>`;
  }
  return html`<table class="feed notices"><thead><tr><th>Time</th><th>From</th><th>Notice</th></tr></thead><tbody>
    ${notices.map((one) => html`<tr class="event" key=${`${one.at}/${one.text}`}>
      <td class="time">${at(one.at)}</td>
      <td class="who">${one.execution != null ? html`<a href=${`#/kernel/${kernel.resource_id}/${one.process}.${one.execution}`}>In [${one.execution}]</a>` : one.label || "environment"}${one.process !== kernel.process ? html` <span class="quiet">process ${one.process}</span>` : null}</td>
      <td class="result">${one.text}</td>
    </tr>`)}
  </tbody></table>`;
}
