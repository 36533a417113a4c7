// Small things that several screens show: states, curves, times that go on, dialogs, sayings.

import { clock, html, rough, signal, span, view } from "./lib.js";

// -- states --------------------------------------------------------------------------------

const WORDS = {
  idle: "idle",
  busy: "busy",
  stopped: "no process",
  starting: "starting",
  restarting: "restarting",
  unresponsive: "not answering",
  orphaned: "orphaned",
  running: "running",
  completed: "completed",
  error: "error",
  interrupted: "interrupted",
  killed: "killed",
};

/** What a kernel is doing, in one word; native code that holds the interpreter is seen by its silence. */
export function stateOf(kernel) {
  if (kernel.state === "unresponsive" || kernel.kernel_state === "unresponsive") return "unresponsive";
  return kernel.state;
}

export const stateWord = (state) => WORDS[state] ?? state;

export const Dot = ({ state }) => html`<span class=${`dot is-${state}`} aria-hidden="true"></span>`;

export const State = ({ state, children }) =>
  html`<span class=${`state is-${state}`}><${Dot} state=${state} />${stateWord(state)}${children}</span>`;

// -- time ----------------------------------------------------------------------------------

/** How long something has gone on that had `seconds` when it was seen. */
export const Elapsed = view(({ seconds, seen }) => {
  const now = Math.max(clock.value, seen);
  return html`<span class="time">${span(seconds + now - seen)}</span>`;
});

export const Countdown = view(({ seconds, seen }) => {
  const left = seconds - Math.max(0, clock.value - seen);
  return html`<span class="time">${rough(Math.max(0, left))}</span>`;
});

export const Since = view(({ at }) => html`<span class="time">${rough(clock.value - at)}</span>`);

/** That nothing has come for a while; nothing as long as something does. */
export const Silent = view(({ since }) => {
  const seconds = clock.value - since;
  return seconds < 5 ? null : html`<span class="quiet silent">silent for ${rough(seconds)}</span>`;
});

// -- curves --------------------------------------------------------------------------------

const WIDTH = 56;
const HEIGHT = 16;

/** A small curve of the last samples, from `least` (or the lowest) to the highest. */
export function Curve({ values, least = 0, most = 0, label }) {
  if (values.length < 2) return html`<svg class="curve" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"></svg>`;
  const top = Math.max(most, ...values, least + 1e-9);
  const step = WIDTH / (values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(HEIGHT - 1 - ((v - least) / (top - least)) * (HEIGHT - 3)).toFixed(1)}`);
  return html`<svg class="curve" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polygon points=${`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
    <polyline points=${points.join(" ")} />
  </svg>`;
}

// -- sayings and dialogs ---------------------------------------------------------------------

export const toasts = signal([]);
let said = 0;

/** Say something for a while; what went wrong stays longer. */
export function say(text, bad = false) {
  const id = (said += 1);
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  setTimeout(() => (toasts.value = toasts.value.filter((one) => one.id !== id)), bad ? 12_000 : 5_000);
}

export const Toasts = view(
  () => html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map((one) => html`<p key=${one.id} class=${one.bad ? "bad" : ""}>${one.text}</p>`)}
  </div>`,
);

/** The open dialog: a function of `close` that draws it. */
export const dialog = signal(null);

export const Dialog = view(() => {
  const draw = dialog.value;
  if (!draw) return null;
  const close = () => (dialog.value = null);
  const shown = (element) => {
    if (!element || element.open) return;
    element.showModal();
    element.scrollTop = 0; // the focus is on what closes it, below
  };
  // Another dialog may have been opened before the browser tells of the close.
  const closed = (event) => !event.target.open && close();
  const outside = (event) => event.target.tagName === "DIALOG" && close();
  return html`<dialog ref=${shown} onClose=${closed} onMouseDown=${outside} aria-labelledby="dialog-title">${draw(close)}</dialog>`;
});

export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;
