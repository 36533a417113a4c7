// The executions of a kernel, newest first, earlier processes behind a line that says how they ended.
//
// Rows have one height, so only those in sight are drawn, however many there are.

import { ask, query } from "./api.js";
import { Component, addressOf, at, headline, html, plural, sender, span } from "./lib.js";
import { Dot, Elapsed } from "./parts.js";
import { highlighted } from "./python.js";
import { onEvent } from "./store.js";

const ROW = 42;
const FIRST = 60;
const PAGE = 300;
const SOURCE = 400;

export class List extends Component {
  constructor(props) {
    super(props);
    this.pages = new Map();
    this.top = 0;
    this.room = 600;
    this.state = { opened: new Set(), error: null };
  }

  componentDidMount() {
    this.refresh().then(() => this.reveal());
    this.stop = onEvent((kind, data) => {
      const mine = data?.kernel === this.props.kernel.resource_id;
      if (kind === "missed" || (mine && /^execution_/.test(kind))) this.soon();
    });
    addEventListener("keydown", this.pressed);
  }

  componentDidUpdate(before) {
    if (before.kernel.process !== this.props.kernel.process || before.kernel.kernel_state !== this.props.kernel.kernel_state) this.soon();
    // Printing makes no event: the count of a running cell comes with each look at the kernels.
    else if (before.kernel.seen !== this.props.kernel.seen && this.runs()) this.soon();
    if (this.props.wanted && before.address !== this.props.address) this.reveal();
  }

  componentWillUnmount() {
    this.stop();
    this.sized?.disconnect();
    clearTimeout(this.timer);
    removeEventListener("keydown", this.pressed);
    this.gone = true;
  }

  /** Whether a cell of the newest process runs, as far as the list knows. */
  runs() {
    return this.pages.get(this.props.kernel.processes[0]?.process)?.cells.some((cell) => cell.state === "running");
  }

  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.refresh();
    }, 250);
  }

  // -- reading -------------------------------------------------------------------------------

  async page(process, before, limit) {
    const { base, resource_id } = this.props.kernel;
    return ask(base, `/api/resources/${resource_id}/executions${query({ process, before, limit, max_chars: SOURCE })}`);
  }

  /** The newest again, in front of what is there. */
  async refresh() {
    const newest = this.props.kernel.processes[0]?.process;
    if (newest == null) return;
    try {
      await this.take(newest, null, FIRST);
      const cells = this.pages.get(newest).cells;
      this.props.newest(cells.find((cell) => cell.state === "running") ?? cells[0] ?? null);
      this.setState({ error: null });
    } catch (error) {
      if (!this.gone) this.setState({ error });
    }
  }

  async take(process, before, limit) {
    const known = this.pages.get(process) ?? { cells: [], next: null, all: false };
    const answer = await this.page(process, before, limit);
    if (this.gone) return;
    const seen = Date.now() / 1000;
    const fresh = answer.executions.map((cell) => ({ ...cell, seen }));
    const serials = new Set(fresh.map((cell) => cell.serial));
    const joins = before != null || !known.cells.length || fresh.some((cell) => known.cells.some((one) => one.serial === cell.serial));
    const kept = joins ? known.cells.filter((cell) => !serials.has(cell.serial)) : [];
    const cells = [...fresh, ...kept].sort((a, b) => b.serial - a.serial);
    const next = before != null || !known.cells.length || !joins ? answer.next : known.next;
    this.pages.set(process, { cells, next });
    this.setState({});
  }

  /** The next page of a process; one at a time. False when there is none, or it cannot be had. */
  more(process) {
    this.reading ??= this.readMore(process).finally(() => (this.reading = null));
    return this.reading;
  }

  async readMore(process) {
    const page = this.pages.get(process);
    if (!page?.next || this.gone) return false;
    try {
      await this.take(process, page.next, PAGE);
      return true;
    } catch (error) {
      this.setState({ error });
      return false;
    }
  }

  /** Bring the row that the address names into the list and into sight, whatever page and process it is on. */
  async reveal() {
    const { wanted, address } = this.props;
    if (!wanted) return;
    this.revealing = address;
    const here = () => !this.gone && this.props.address === address;
    try {
      await this.open(wanted.process);
      while (here() && !this.has(address) && !this.passed(wanted)) if (!(await this.more(wanted.process))) break;
    } catch (error) {
      if (!this.gone) this.setState({ error });
    }
    if (this.revealing === address) this.revealing = null;
    if (here()) this.setState({}, () => this.intoSight(address));
  }

  async open(process) {
    if (!this.props.kernel.processes.some((one) => one.process === process)) return;
    if (!this.pages.has(process)) await this.take(process, null, FIRST);
    if (process !== this.props.kernel.processes[0].process) this.setState({ opened: new Set(this.state.opened).add(process) });
  }

  has(address) {
    return this.rows().some((row) => row.cell && addressOf(row.cell) === address);
  }

  /** Whether the rows that are read go back beyond the one that is looked for. */
  passed({ process, number, serial }) {
    const page = this.pages.get(process);
    if (!page?.next) return true;
    if (serial != null) return page.cells.at(-1).serial <= serial;
    return page.cells.some((cell) => cell.execution != null && cell.execution < number);
  }

  intoSight(address) {
    const index = this.rows().findIndex((row) => row.cell && addressOf(row.cell) === address);
    if (index < 0 || !this.box) return;
    const top = index * ROW;
    if (top < this.box.scrollTop || top + ROW > this.box.scrollTop + this.room) this.box.scrollTop = top - this.room / 3;
  }

  toggle(process) {
    const opened = new Set(this.state.opened);
    if (!opened.delete(process)) opened.add(process);
    if (!this.pages.has(process)) this.take(process, null, FIRST).catch((error) => this.setState({ error }));
    this.setState({ opened });
  }

  // -- rows ----------------------------------------------------------------------------------

  rows() {
    const rows = [];
    this.props.kernel.processes.forEach((process, i) => {
      const number = process.process;
      const open = i === 0 || this.state.opened.has(number);
      if (process.how) rows.push({ end: process, open, fixed: i === 0 });
      const page = open ? this.pages.get(number) : null;
      if (!page) return;
      for (const cell of page.cells) rows.push({ cell });
      if (page.next) rows.push({ more: number });
    });
    return rows;
  }

  scrolled = (event) => {
    this.top = event.target.scrollTop;
    this.setState({});
  };

  setBox = (element) => {
    this.box = element;
    if (!element || this.sized) return;
    this.sized = new ResizeObserver(() => {
      this.room = element.clientHeight;
      this.setState({});
    });
    this.sized.observe(element);
  };

  /** j and k go to the next and the previous cell. */
  pressed = (event) => {
    const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.closest?.("input, textarea, dialog, .output, pre, ol") || event.metaKey || event.ctrlKey || event.altKey || !this.box) return;
    event.preventDefault();
    if (!this.revealing) this.step(step);
  };

  async step(step) {
    const rows = this.rows();
    const here = rows.findIndex((row) => row.cell && addressOf(row.cell) === this.props.address);
    let index = here + step;
    while (rows[index]?.end) index += step;
    const row = rows[index];
    if (row?.more) {
      const { address } = this.props;
      if ((await this.more(row.more)) && this.props.address === address) this.step(step);
    } else if (row) {
      this.props.open(row.cell);
      const top = index * ROW;
      if (top < this.top) this.box.scrollTop = top;
      else if (top + ROW > this.top + this.room) this.box.scrollTop = top + ROW - this.room;
    }
  }

  render() {
    const rows = this.rows();
    const first = Math.max(0, Math.floor(this.top / ROW) - 5);
    const last = Math.min(rows.length, Math.ceil((this.top + this.room) / ROW) + 5);
    const ahead = rows.slice(first, last + 20).find((row) => row.more);
    if (ahead && !this.state.error) queueMicrotask(() => this.more(ahead.more));
    return html`<div class="list" ref=${this.setBox} onScroll=${this.scrolled} role="region" aria-label="Executions" tabindex="0">
      ${this.state.error && html`<p class="note bad" role="alert">${this.state.error.message}</p>`}
      <div class="canvas" style=${{ height: `${rows.length * ROW}px` }}>
        ${rows.slice(first, last).map((row, i) => this.row(row, (first + i) * ROW))}
      </div>
    </div>`;
  }

  row(row, top) {
    const style = { top: `${top}px` };
    if (row.more) return html`<div class="item quiet" key=${`more${row.more}`} style=${style}>Reading earlier ones…</div>`;
    if (row.end) {
      const { process, how, ended_at: when } = row.end;
      const text = html`<span>Process ${process} ${how}</span><span class="time">${at(when)}</span>`;
      return row.fixed
        ? html`<div class="item end" key=${`end${process}`} style=${style}>${text}</div>`
        : html`<button class="item end" key=${`end${process}`} style=${style} aria-expanded=${String(row.open)} onClick=${() => this.toggle(process)}>${text}</button>`;
    }
    const { cell } = row;
    const address = addressOf(cell);
    const mine = address === this.props.address;
    return html`<a class=${`item cell ${mine ? "current" : ""}`} key=${address} style=${style} aria-current=${mine ? "true" : null}
        href=${`#/kernel/${this.props.kernel.resource_id}/${address}`}>
      <span class="number">${cell.execution ?? "·"}</span>
      <${Dot} state=${cell.state} /><span class="hidden">${cell.state}</span>
      <code>${highlighted(headline(cell.source))}</code>
      <span class="took">${cell.state === "running" ? html`<${Elapsed} seconds=${cell.elapsed_seconds} seen=${cell.seen} />` : span(cell.elapsed_seconds)}</span>
      <span class="under"><bdi>${sender(cell.origin)}</bdi> · ${at(cell.submitted_at)}${cell.ename ? html` · <b>${cell.ename}</b>` : cell.state === "completed" || cell.state === "running" ? "" : html` · <b>${cell.state}</b>`}</span>
      <span class="lines">${cell.lines ? plural(cell.lines, "line") : ""}</span>
    </a>`;
  }
}
