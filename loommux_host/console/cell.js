// One execution: what it is, its source, and its output as it prints.
//
// Of the output only a window is held, whatever its length: lines near those in sight, by
// number. While the cell runs, one request at a time waits for news and brings the window
// with it, five times a second at most; so a flood costs no more than a trickle.

import { ApiError, ask, query } from "./api.js";
import { Component, at, cellName, count, html, plural, sender, size, span } from "./lib.js";
import { interrupt } from "./acts.js";
import { Displayed, heightOf, placed } from "./displays.js";
import { Elapsed, Silent, State, dialog, say } from "./parts.js";
import { highlighted } from "./python.js";
import { Hits, find, marked } from "./search.js";

const LINE = 18;
/** Browsers cannot make an element higher; beyond it, scrolling covers more lines at once. */
const HIGHEST = 15_000_000;
const BEYOND = 40;
const HELD = 6_000;
const CLIP = 2_000;
const LEAST_MS = 200;
const WAIT_SECONDS = 10;
const GONE = /^\[lines ([\d,]+)–([\d,]+) are gone\]$/;
const CLIPPED = /…\[[\d,]+ chars omitted\]$/;
const STREAMS = ["combined", "stdout", "stderr", "result", "traceback"];

const pause = (ms) => new Promise((after) => setTimeout(after, ms));
const visible = () =>
  document.hidden ? new Promise((after) => document.addEventListener("visibilitychange", after, { once: true })) : null;

export class Cell extends Component {
  constructor(props) {
    super(props);
    this.lines = new Map();
    this.displays = [];
    this.known = "";
    this.heights = new Map();
    this.total = 0;
    this.top = 0;
    this.room = 600;
    this.target = props.line ?? null;
    this.stop = new AbortController();
    this.state = { facts: null, follow: false, error: null, search: null, finding: false, folded: false };
  }

  get which() {
    const { number, serial, process } = this.props;
    return { execution: serial ? undefined : number, serial, process };
  }

  get path() {
    return `/api/resources/${this.props.kernel.resource_id}`;
  }

  async componentDidMount() {
    this.sized = new ResizeObserver(() => this.measure());
    try {
      await this.fetch(this.target ? Math.max(1, this.target - 100) : null, 200);
    } catch (error) {
      if (error.name !== "AbortError") this.setState({ error });
      return;
    }
    const { facts } = this.state;
    const toEnd = facts.running || facts.state === "error" || facts.state === "killed";
    this.setState({ follow: facts.running && !this.target }, () => {
      if (this.target) this.goTo(this.target);
      else if (toEnd) this.toEnd();
    });
    if (!toEnd && !this.target && this.total > 200) this.need();
    if (facts.running) this.live();
  }

  componentWillUnmount() {
    this.stop.abort();
    this.sized?.disconnect();
  }

  componentDidUpdate(before) {
    if (before.line !== this.props.line && this.props.line) this.goTo(this.props.line);
  }

  // -- reading -------------------------------------------------------------------------------

  async fetch(first, lines, more = {}) {
    const asked = { ...this.which, stream: this.props.stream, first: first ?? undefined, count: lines, max_chars: CLIP, ...more };
    const answer = await ask(this.props.kernel.base, `${this.path}/lines${query(asked)}`, { signal: this.stop.signal });
    this.take(answer);
    return answer;
  }

  take(answer) {
    const before = this.state.facts;
    this.total = answer.total_lines;
    let number = answer.first;
    for (const text of answer.text) {
      this.lines.set(number, text);
      const gone = answer.dropped && GONE.exec(text);
      number = gone ? Number(gone[2].replaceAll(",", "")) + 1 : number + 1;
    }
    if (this.lines.size > HELD) this.forget(answer.first);
    const { text, ...facts } = answer;
    this.setState({ facts: { ...before, ...facts, seen: Date.now() / 1000 } }, () => this.state.follow && this.toEnd());
    const displays = JSON.stringify(answer.displays);
    if (displays !== this.known) {
      this.known = displays;
      this.show();
    }
  }

  forget(near) {
    for (const number of this.lines.keys()) if (Math.abs(number - near) > HELD / 3) this.lines.delete(number);
  }

  async show() {
    try {
      const { displays } = await ask(this.props.kernel.base, `${this.path}/displays${query(this.which)}`, { signal: this.stop.signal });
      this.displays = placed(displays);
      this.setState({}, () => this.state.follow && this.toEnd());
    } catch (error) {
      if (error.name !== "AbortError") say(`Its displays cannot be had: ${error.message}`, true);
    }
  }

  async live() {
    let failures = 0;
    while (this.state.facts.running && !this.stop.signal.aborted) {
      const began = performance.now();
      await visible();
      const [first, last] = this.inSight();
      const lines = Math.min(400, last - first + 1 + BEYOND);
      try {
        await this.fetch(this.state.follow ? null : first, lines, { after: this.state.facts.updated_at, wait: WAIT_SECONDS });
        failures = 0;
      } catch (error) {
        if (error.name === "AbortError") return;
        if (error.code >= 400 && error.code < 500) return this.setState({ error });
        failures += 1;
      }
      await pause(Math.max(failures ? Math.min(5_000, 500 * 2 ** failures) : 0, LEAST_MS - (performance.now() - began)));
    }
    this.need(true);
  }

  /** Read what is in sight and not held. */
  async need(anew = false) {
    const [first, last] = this.inSight();
    let from = first;
    while (!anew && from <= last && this.lines.has(from)) from += 1;
    if (from > last || this.reading) return;
    this.reading = true;
    try {
      await this.fetch(Math.max(1, from - BEYOND), last - from + 1 + 2 * BEYOND);
    } catch (error) {
      if (error.name !== "AbortError") say(error.message, true);
    }
    this.reading = false;
    const [now] = this.inSight();
    if (!this.lines.has(now) && this.total && !this.stop.signal.aborted) setTimeout(() => this.need(), 50);
  }

  // -- places --------------------------------------------------------------------------------

  /** Pixels above a line: lines, and the displays that stand between them. */
  above(line) {
    let pixels = (line - 1) * LINE;
    for (const shown of this.displays) {
      if (shown.line >= line) break;
      pixels += heightOf(this, shown);
    }
    return pixels;
  }

  get height() {
    return this.displays.reduce((sum, shown) => sum + heightOf(this, shown), this.total * LINE);
  }

  /** Where in the whole the scroller stands. */
  get offset() {
    const real = this.height;
    const shown = Math.min(real, HIGHEST);
    return shown > this.room ? (this.top * (real - this.room)) / (shown - this.room) : 0;
  }

  inSight() {
    const at = this.offset;
    let first = 1;
    let extra = 0;
    for (const shown of this.displays) {
      if (shown.line * LINE + extra > at) break;
      extra += heightOf(this, shown);
    }
    first = Math.max(1, Math.floor((at - extra) / LINE) - 5);
    return [first, Math.max(1, Math.min(this.total, first + Math.ceil(this.room / LINE) + 10))];
  }

  measure() {
    if (!this.box) return;
    this.room = this.box.clientHeight;
    this.setState({}, () => (this.state.follow ? this.toEnd() : this.need()));
  }

  toEnd() {
    if (this.box) this.box.scrollTop = this.box.scrollHeight;
  }

  goTo(line) {
    this.target = line;
    if (!this.box) return;
    const real = this.height;
    const shown = Math.min(real, HIGHEST);
    const wanted = Math.max(0, this.above(line) - this.room / 3);
    this.setState({ follow: false });
    this.box.scrollTop = real > this.room ? (wanted * (shown - this.room)) / (real - this.room) : 0;
    this.scrolled();
  }

  scrolled = () => {
    const { box } = this;
    if (!box) return; // the browser tells of a scroll after the output has gone
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 2;
    const up = box.scrollTop < this.top - 1;
    this.top = box.scrollTop;
    if (this.state.follow && up && !atEnd) this.setState({ follow: false });
    else if (!this.state.follow && atEnd && this.state.facts?.running && !up) this.setState({ follow: true });
    else this.setState({});
    this.need();
  };

  loaded = (ordinal, height) => {
    if (this.heights.get(ordinal) === height) return;
    this.heights.set(ordinal, height);
    this.setState({}, () => this.state.follow && this.toEnd());
  };

  setBox = (element) => {
    if (this.box && element !== this.box) this.sized.unobserve(this.box);
    this.box = element;
    if (element) {
      this.sized ??= new ResizeObserver(() => this.measure());
      this.sized.observe(element);
      this.room = element.clientHeight;
    }
  };

  // -- drawing -------------------------------------------------------------------------------

  render() {
    const { facts, error } = this.state;
    if (error) return html`<section class="cellview"><p class="note bad" role="alert">${error instanceof ApiError ? error.message : String(error)}</p></section>`;
    if (!facts) return html`<section class="cellview"><div class="loading" role="status">Reading…</div></section>`;
    return html`<section class="cellview" aria-label=${cellName(facts)}>
      ${this.head(facts)} ${this.source(facts)}
      ${this.props.notices.map((notice) => html`<p class="note notice" key=${notice.at}><b>Notice</b> ${notice.text}</p>`)}
      ${facts.dropped && html`<p class="note bad">${facts.dropped}</p>`}
      ${facts.ename && html`<p class="note bad"><b>${facts.ename}</b> ${facts.evalue}</p>`}
      ${this.tools(facts)}
      ${this.state.search && html`<${Hits} search=${this.state.search} goTo=${(line) => this.goTo(line)} close=${() => this.setState({ search: null })} />`}
      ${this.output(facts)}
    </section>`;
  }

  head(facts) {
    const { kernel } = this.props;
    return html`<header class="cellhead">
      <h2>${cellName(facts)}</h2>
      <${State} state=${facts.state} />
      ${facts.running ? html`<${Elapsed} seconds=${facts.elapsed_seconds} seen=${facts.seen} />` : html`<span class="time">${span(facts.elapsed_seconds)}</span>`}
      <span class="quiet"><bdi>${sender(facts.origin)}</bdi> · ${at(facts.submitted_at)}${facts.process !== kernel.process ? ` · process ${facts.process}` : ""}</span>
      ${facts.running && html`<${Silent} since=${facts.updated_at} />`}
      <span class="spacer"></span>
      ${facts.running && html`<button class="small danger" onClick=${() => interrupt(kernel, facts)}>Interrupt</button>`}
    </header>`;
  }

  source(facts) {
    if (!facts.source) return null;
    const lines = facts.source.trimEnd().split("\n").length;
    const fold = () => this.setState((state) => ({ folded: !state.folded }));
    return html`<div class=${`source ${this.state.folded ? "folded" : ""}`}>
      <pre tabindex="0" aria-label="Source"><code>${highlighted(facts.source.trimEnd())}</code></pre>
      ${lines > 3 && html`<button class="small fold" onClick=${fold} aria-expanded=${String(!this.state.folded)}>${this.state.folded ? `Show ${lines} lines` : "Fold"}</button>`}
    </div>`;
  }

  tools(facts) {
    const { stream, setStream } = this.props;
    const there = STREAMS.filter((name) => name === "combined" || facts.streams[name] || name === stream);
    const look = (event) => {
      event.preventDefault();
      this.search(event.target.elements.query.value);
    };
    return html`<div class="bar tools">
      <div class="tabs" role="tablist" aria-label="Stream">
        ${there.map((name) => html`<button key=${name} role="tab" aria-selected=${String(name === stream)} onClick=${() => setStream(name)}>
          ${name === "combined" ? "output" : name} <span class="quiet">${count(facts.streams[name])}</span></button>`)}
      </div>
      <span class="spacer"></span>
      <span class="quiet amount">${size(facts.utf8_bytes)}${facts.late_lines ? ` · ${plural(facts.late_lines, "late line")}` : ""}</span>
      <form role="search" onSubmit=${look}>
        <input type="search" name="query" placeholder="Search  /" aria-label="Search this output" disabled=${facts.execution == null} />
      </form>
      ${facts.running && html`<button aria-pressed=${String(this.state.follow)} class="follow" onClick=${() => this.follow()}>Follow</button>`}
    </div>`;
  }

  follow() {
    this.setState((state) => ({ follow: !state.follow }), () => this.state.follow && this.toEnd());
  }

  async search(text) {
    if (!text) return this.setState({ search: null });
    try {
      const search = await find(this.props.kernel.base, this.path, { ...this.which, serial: undefined, stream: this.props.stream }, text);
      this.setState({ search }, () => search.rows.length && this.goTo(search.rows.find((row) => row.hit)?.line ?? 1));
    } catch (error) {
      this.setState({ search: { text, rows: [], message: error.message } });
    }
  }

  output(facts) {
    if (!this.total && !this.displays.length) {
      const word = facts.running ? "Nothing printed yet." : this.props.stream === "combined" ? "It printed nothing." : `Nothing on ${this.props.stream}.`;
      return html`<p class="quiet nothing">${word}</p>`;
    }
    const [first, last] = this.inSight();
    const shift = this.top - this.offset;
    const shown = Math.min(this.height, HIGHEST);
    const rows = [];
    for (let number = first; number <= last && number <= this.total; number += 1) rows.push(this.line(number, shift));
    for (const one of this.displays) {
      if (this.props.stream !== "combined" || one.line < first - 1 || one.line > last) continue;
      const top = one.line * LINE + this.before(one);
      rows.push(html`<${Displayed} key=${`d${one.ordinal}`} top=${top + shift} cell=${this} display=${one} url=${this.displayUrl} loaded=${this.loaded} />`);
    }
    const digits = Math.max(3, String(this.total).length);
    return html`<div class="output" ref=${this.setBox} onScroll=${this.scrolled} tabindex="0" role="region" aria-label="Output">
      <div class="canvas" style=${{ height: `${shown}px`, "--digits": String(digits) }}>${rows}</div>
    </div>`;
  }

  /** What the displays above this one take. */
  before(one) {
    const earlier = this.displays.slice(0, this.displays.indexOf(one));
    return earlier.reduce((pixels, other) => pixels + heightOf(this, other), 0);
  }

  displayUrl = (display, type) => {
    const asked = { ...this.which, ordinal: display.ordinal, type };
    const version = this.state.facts.displays.find((one) => one.ordinal === display.ordinal)?.bytes;
    return `${this.props.kernel.base}${this.path}/display${query(asked)}#${version ?? ""}`;
  };

  line(number, shift) {
    const text = this.lines.get(number);
    const here = number === this.target ? "line here" : "line";
    const link = `#/kernel/${this.props.kernel.resource_id}/${this.props.address}/${number}${this.props.stream === "combined" ? "" : `?stream=${this.props.stream}`}`;
    return html`<div key=${number} class=${here} style=${{ top: `${this.above(number) + shift}px` }}>
      <a class="no" href=${link} tabindex="-1" aria-label=${`Line ${number}`}>${number}</a><span class="text">${marked(text ?? "", this.state.search)}</span>${
        text && text.length > CLIP && CLIPPED.test(text) ? html`<button class="small" onClick=${() => this.whole(number)}>Show more</button>` : null
      }</div>`;
  }

  async whole(number) {
    const asked = { ...this.which, stream: this.props.stream, first: number, count: 1, max_chars: 20_000 };
    const answer = await ask(this.props.kernel.base, `${this.path}/lines${query(asked)}`);
    dialog.value = (close) => html`<h2 id="dialog-title">Line ${count(number)}</h2>
      <pre class="whole" tabindex="0">${answer.text[0]}</pre>
      <footer><button onClick=${close} autofocus>Close</button></footer>`;
  }
}
