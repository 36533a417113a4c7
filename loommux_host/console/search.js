// Searching an output: the server looks, the page shows what it found, with lines around it.

import { ask, query } from "./api.js";
import { Component, count, html, plural } from "./lib.js";

const ROW = /^([MC]) +([\d,]+)(?::\d+)? \| ?(.*)$/;
const CONTEXT = 1;
const SHOWN = 500;

/** {text, rows, message, pattern}: what `text` matches, as a regex if it is one. */
export async function find(base, path, which, text) {
  const asked = { ...which, query: text, context_before: CONTEXT, context_after: CONTEXT, ignore_case: true, max_chars: 300 };
  const found = await ask(base, `${path}/search${query(asked)}`);
  const lines = found.text ? found.text.split("\n") : [...found.head_lines, ...found.tail_lines];
  const rows = lines
    .map((line) => ROW.exec(line))
    .filter(Boolean)
    .map(([, kind, number, shown]) => ({ hit: kind === "M", line: Number(number.replaceAll(",", "")), text: shown }));
  const message = `${plural(found.matching_lines, "line")}, ${plural(found.matches, "match", "matches")} of “${text}” in ${plural(found.output_total_lines, "line")}`;
  return { text, rows: rows.slice(0, SHOWN), message, pattern: patternOf(found.query_interpretation, text) };
}

function patternOf(how, text) {
  try {
    return new RegExp(how === "literal" ? text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&") : text, "giu");
  } catch {
    return null; // a pattern that Python knows and this browser does not
  }
}

/** A line's text with what was searched for in it marked. */
export function marked(text, search) {
  if (!search?.pattern || !text) return text;
  const parts = [];
  let last = 0;
  for (const match of text.slice(0, 2_000).matchAll(search.pattern)) {
    if (!match[0]) continue;
    parts.push(text.slice(last, match.index), html`<mark>${match[0]}</mark>`);
    last = match.index + match[0].length;
  }
  return parts.length ? [...parts, text.slice(last)] : text;
}

export class Hits extends Component {
  render({ search, goTo, close }) {
    return html`<div class="hits">
      <header><span role="status">${search.message}</span><span class="spacer"></span><button class="small" onClick=${close}>Close</button></header>
      ${search.rows.length
        ? html`<ol tabindex="0" aria-label="What was found">${search.rows.map((row, i) => {
            const apart = i > 0 && row.line > search.rows[i - 1].line + 1;
            return html`<li key=${row.line} class=${`${row.hit ? "hit" : "around"} ${apart ? "apart" : ""}`}>
              <button onClick=${() => goTo(row.line)}><span class="no">${count(row.line)}</span><span class="text">${row.hit ? marked(row.text, search) : row.text}</span></button>
            </li>`;
          })}</ol>`
        : null}
    </div>`;
  }
}
