// What code displayed: images in the page, HTML only in a frame that can do nothing.

import { html, size } from "./lib.js";
import { dialog } from "./parts.js";

const RASTER = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const HIGHEST = 360;
const FRAME = 240;
const CLOSED = 30;
const UNKNOWN = 120;

const imageOf = (types) => RASTER.find((type) => type in types) ?? ("image/svg+xml" in types ? "image/svg+xml" : null);

/** Displays that have more than text, in the order of their places. */
export const placed = (displays) =>
  displays
    .filter(({ types }) => imageOf(types) || "text/html" in types)
    .sort((a, b) => a.line - b.line || a.ordinal - b.ordinal);

export function heightOf(cell, display) {
  if (cell.props.stream !== "combined") return 0;
  return cell.heights.get(display.ordinal) ?? (imageOf(display.types) ? UNKNOWN : CLOSED);
}

export function Displayed({ top, cell, display, url, loaded }) {
  const type = imageOf(display.types);
  const style = { top: `${top}px`, height: `${heightOf(cell, display)}px` };
  return html`<div class="display" style=${style}>
    ${type ? html`<${Picture} type=${type} display=${display} url=${url} loaded=${loaded} />` : html`<${Framed} cell=${cell} display=${display} url=${url} loaded=${loaded} />`}
  </div>`;
}

function Picture({ type, display, url, loaded }) {
  const src = url(display, type);
  const name = `Display ${display.ordinal}`;
  const sized = ({ target }) => {
    const { naturalWidth: width, naturalHeight: height } = target;
    const box = target.closest(".display");
    const room = box.clientWidth - parseFloat(getComputedStyle(box).paddingLeft) - 14;
    const fitting = (height || UNKNOWN) * Math.min(1, room / (width || room));
    loaded(display.ordinal, Math.ceil(Math.min(HIGHEST, Math.max(24, fitting))) + 12);
  };
  const broken = () => loaded(display.ordinal, CLOSED);
  const open = () => {
    dialog.value = (close) => html`<h2 id="dialog-title">${name} <span class="quiet">${type}</span></h2>
      <img class="full" src=${src} alt=${name} /><footer><button onClick=${close} autofocus>Close</button></footer>`;
  };
  return html`<button class="picture" onClick=${open} aria-label=${`${name}, ${type}: show in full size`}>
    <img src=${src} alt=${`${name}: image that does not show`} onLoad=${sized} onError=${broken} />
  </button>`;
}

function Framed({ cell, display, url, loaded }) {
  const opened = cell.heights.get(display.ordinal) > CLOSED;
  const toggle = () => loaded(display.ordinal, opened ? CLOSED : FRAME + CLOSED);
  return html`<div class="framed">
    <button class="small" onClick=${toggle} aria-expanded=${String(opened)}>${opened ? "Close" : "Show"} HTML</button>
    <span class="quiet">display ${display.ordinal}, ${size(display.types["text/html"])}; in a frame without scripts, links or network</span>
    ${opened && html`<iframe sandbox="" src=${url(display, "text/html")} title=${`HTML of display ${display.ordinal}`} />`}
  </div>`;
}
