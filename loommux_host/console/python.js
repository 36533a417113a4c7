// Python's words in colours: a scanner good enough to read by, not a parser.

import { html } from "./lib.js";

const KEYWORDS = new Set(
  ("False None True and as assert async await break case class continue def del elif else except finally for from " +
    "global if import in is lambda match nonlocal not or pass raise return try while with yield").split(" "),
);
const TOKEN = new RegExp(
  [
    /(?<string>(?:[rbuft]|[rbft]{2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))/,
    /(?<comment>#[^\n]*)/,
    /(?<magic>(?<=^|\n)[ \t]*(?:%%?|!)[^\n]*)/,
    /(?<decorator>(?<=^|\n)[ \t]*@[\w.]+)/,
    /(?<number>\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.[\d_]*)?(?:e[+-]?\d+)?j?)\b)/,
    /(?<name>[^\W\d]\w*)/,
  ]
    .map((part) => part.source)
    .join("|"),
  "giu",
);
/** More than this is shown plainly: colours are for reading, and nobody reads that much. */
const LONGEST = 50_000;

const kindOf = (groups, text, rest) => {
  if (groups.name === undefined) return Object.keys(groups).find((key) => groups[key] !== undefined);
  if (KEYWORDS.has(text)) return "keyword";
  return rest.startsWith("(") ? "call" : null;
};

/** Source as spans. */
export function highlighted(source) {
  if (source.length > LONGEST) return source;
  const parts = [];
  let last = 0;
  for (const match of source.matchAll(TOKEN)) {
    const text = match[0];
    const end = match.index + text.length;
    const kind = kindOf(match.groups, text, source.slice(end, end + 1));
    if (!kind) continue;
    if (match.index > last) parts.push(source.slice(last, match.index));
    parts.push(html`<span class=${`py-${kind}`}>${text}</span>`);
    last = end;
  }
  parts.push(source.slice(last));
  return parts;
}
