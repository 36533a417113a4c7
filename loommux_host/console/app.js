// The page: which screen the address names, the frame around it, the login, the keys.

import * as acts from "./acts.js";
import { Activity } from "./activity.js";
import { kernelAt, parse, unbind, withKernel, wordNow } from "./addresses.js";
import { ask, locked } from "./api.js";
import { Fleet, keys as fleetKeys } from "./fleet.js";
import { KernelPage } from "./kernel.js";
import { effect, html, plural, render, signal, view } from "./lib.js";
import { Login, login } from "./login.js";
import { Dialog, Toasts, dialog, say } from "./parts.js";
import { begin, connection, kernels, ofAll, outdated, servers } from "./store.js";

// -- where we are --------------------------------------------------------------------------

const route = signal(parse(location.hash));
addEventListener("hashchange", () => {
  if (!loginByAddress()) route.value = parse(location.hash);
});

/** A renamed kernel keeps its page; the address follows. */
effect(() => {
  const here = route.value;
  if (here.screen !== "kernel") return unbind();
  const word = kernels.value ? wordNow(here.kernel) : here.kernel;
  if (word === here.kernel) return;
  history.replaceState(null, "", withKernel(location.hash, word));
  route.value = parse(location.hash);
});

effect(() => {
  const { screen, kernel } = route.value;
  const busy = kernels.value?.filter((one) => one.busy).length;
  const name = screen === "kernel" ? (kernelAt(kernel)?.name ?? "kernel") : screen === "activity" ? "Activity" : "Fleet";
  document.title = `${busy ? `(${busy}) ` : ""}${name} · loommux`;
});

// -- colours -------------------------------------------------------------------------------

const theme = signal(localStorage.getItem("loommux-theme") ?? "auto");
effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("loommux-theme", theme.value);
});
const NEXT = { auto: "light", light: "dark", dark: "auto" };

// -- login ---------------------------------------------------------------------------------

/** A token behind #token= is used once and taken out of the address: it reaches no server's log. */
function loginByAddress() {
  const found = /^#token=([^&]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", found[2] ? `#${decodeURIComponent(found[2])}` : "#/");
  route.value = parse(location.hash);
  login(decodeURIComponent(found[1])).catch(() => {
    locked.value = true;
    say("That address has let a browser in already, or has been replaced by a newer one.", true);
  });
  return true;
}

// -- the frame -----------------------------------------------------------------------------

const Bar = view(() => {
  const { screen } = route.value;
  const link = (to, name, label) => html`<a href=${to} aria-current=${screen === name ? "page" : null}>${label}</a>`;
  const health = servers.value[0]?.health;
  const place = servers.value[0]?.many ? plural(servers.value.length, "server") : (health?.workspace ?? "");
  return html`<header class="top">
    <a class="brand" href="#/"><img src="/console/icon.svg" alt="" width="18" height="18" />loommux</a>
    <nav aria-label="Screens">${link("#/", "fleet", "Fleet")}${link("#/activity", "activity", "Activity")}</nav>
    <span class="spacer"></span>
    <span class="place quiet" title=${place}>${place}</span>
    <span class=${`link is-${connection.value}`} role="status"><span class="dot" aria-hidden="true"></span>${{ open: "live", lost: "not connected", connecting: "connecting" }[connection.value]}</span>
    ${ofAll.value && html`<button class="small other" onClick=${acts.invite}>Other browser</button>`}
    <button class="small" onClick=${() => (theme.value = NEXT[theme.value])} aria-label=${`Colours: ${theme.value}`} title="Colours: auto, light, dark">${theme.value}</button>
    <button class="small keys" onClick=${help} aria-label="Keys">?</button>
  </header>`;
});

const Banner = view(() => {
  if (outdated.value) return html`<p class="banner">The server has a new version. <a href="" onClick=${() => location.reload()}>Load it</a></p>`;
  if (connection.value === "lost") return html`<p class="banner bad" role="alert">The server does not answer; what is shown may be old. Trying again…</p>`;
  return null;
});

const App = view(() => {
  if (locked.value) return html`<${Login} /><${Toasts} />`;
  const here = route.value;
  return html`<${Bar} /><${Banner} />
    ${here.screen === "kernel" ? html`<${KernelPage} route=${here} />` : here.screen === "activity" ? html`<${Activity} />` : html`<${Fleet} />`}
    <${Dialog} /><${Toasts} />`;
});

// -- keys ----------------------------------------------------------------------------------

const KEYS = [
  ["f", "Fleet"],
  ["a", "Activity"],
  ["j k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["Delete", "Recycle what is selected"],
  ["/", "Search this output"],
  ["g  G", "First and last line"],
  ["i", "Interrupt"],
  ["r", "Restart"],
  ["v n", "Variables, notices"],
  ["Esc", "Back"],
];

function help() {
  dialog.value = (close) => html`<h2 id="dialog-title">Keys</h2>
    <dl class="keylist">${KEYS.map(([key, does]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
    <footer><button onClick=${close} autofocus>Close</button></footer>`;
}

function press(event) {
  if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey || locked.value) return;
  if (event.target.closest("dialog")) return;
  if (event.target.closest("input, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const here = route.value;
  const used =
    everywhere(event.key) ||
    (here.screen === "fleet" && !(event.key === "Enter" && event.target.closest("a, button")) && fleetKeys(event.key)) ||
    (here.screen === "kernel" && kernelKeys(event.key, here));
  if (used) event.preventDefault();
}

function everywhere(key) {
  if (key === "f") location.hash = "#/";
  else if (key === "a") location.hash = "#/activity";
  else if (key === "?") help();
  else return false;
  return true;
}

function kernelKeys(key, here) {
  const kernel = kernelAt(here.kernel);
  const base = `#/kernel/${encodeURIComponent(here.kernel)}`;
  const output = document.querySelector(".output");
  if (!kernel) return false;
  if (key === "i") acts.interrupt(kernel);
  else if (key === "r") acts.restart(kernel);
  else if (key === "v") location.hash = `${base}?tab=variables`;
  else if (key === "n") location.hash = `${base}?tab=notices`;
  else if (key === "/") document.querySelector(".tools input")?.focus();
  else if (key === "g" && output) output.scrollTop = 0;
  else if (key === "G" && output) output.scrollTop = output.scrollHeight;
  else if (key === "Escape") location.hash = here.cell || here.query.tab ? base : "#/";
  else return false;
  return true;
}

addEventListener("keydown", press);
if (!loginByAddress()) begin();
render(html`<${App} />`, document.body);
