// What every part of the page is made of: elements, views that follow signals, words for numbers.

import { Component, h, render } from "./vendor/preact-11.2.0.js";
import htm from "./vendor/htm-3.1.1.js";
import { batch, computed, effect, signal } from "./vendor/signals-core-1.14.5.js";

export { Component, batch, computed, effect, render, signal };

/** Elements from templates. Whatever is put in becomes text, never markup. */
export const html = htm.bind(h);

/** A component that draws anew when a signal it has read changes. */
export const view = (draw) =>
  class extends Component {
    render() {
      this.stop?.();
      let drawn;
      let first = true;
      this.stop = effect(() => {
        if (first) drawn = draw(this.props, this);
        else this.setState({});
        first = false;
      });
      return drawn;
    }
    componentWillUnmount() {
      this.stop?.();
    }
  };

/** Seconds of this browser's clock; beats once a second while somebody looks. */
export const clock = signal(Date.now() / 1000);

// -- words ---------------------------------------------------------------------------------

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(bytes) {
  if (bytes == null) return "–";
  let value = bytes;
  let unit = 0;
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** 270 ms, 4.1 s, 3:05, 2:14:09: as short as it can be read at a glance. */
export function span(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const s = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** 45 s, 12 min, 3 h, 2 d: of what is long enough not to be counted. */
export function rough(seconds) {
  if (seconds == null) return "–";
  if (seconds < 90) return `${Math.round(Math.max(0, seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const count = (n) => n.toLocaleString("en");
export const plural = (n, noun, many = `${noun}s`) => `${count(n)} ${n === 1 ? noun : many}`;

/** Time of day; with the date when that is not today. */
export function at(seconds) {
  const when = new Date(seconds * 1000);
  const day = (d) => d.toDateString();
  const time = when.toLocaleTimeString("en-GB");
  return day(when) === day(new Date()) ? time : `${when.toISOString().slice(0, 10)} ${time}`;
}

export const cellName = (cell) => (cell.execution == null ? "In [ ]" : `In [${cell.execution}]`);

/** How an execution is named in addresses: process and number, or serial for those without one. */
export const addressOf = (cell) => (cell.execution == null ? `${cell.process}.s${cell.serial}` : `${cell.process}.${cell.execution}`);

/** A kernel's name as a header carries it. `'` and `!` too: it stands in shell words and in TOML. */
export const plainName = (name) => encodeURIComponent(name).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

/** A name as it fits into a sentence. */
export const short = (name) => (name.length > 60 ? `${name.slice(0, 57)}…` : name);

/** The first line that says something: headers of ours and blank lines are passed over. */
export function headline(source) {
  const lines = source.split("\n").filter((line) => line.trim());
  return (lines.find((line) => !line.trimStart().startsWith("%%loommux")) ?? lines[0] ?? "").trim();
}

export function sender(origin) {
  if (origin.kind === "startup") return `startup ${origin.label}`.trim();
  if (origin.kind === "console") return "console";
  return origin.label.replace(/^session /, "") || origin.kind;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // where the page has no right to the clipboard
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
