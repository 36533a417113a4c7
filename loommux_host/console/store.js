// What the page knows: servers, kernels, what happened; and how that is kept up to date.
//
// Events say that something changed, a look at all kernels says what is. Memory and
// processor time make no events, so while a cell runs the page looks every two seconds,
// otherwise four times a minute, and never while nobody sees it.

import { ask, listen, locked } from "./api.js";
import { batch, clock, signal } from "./lib.js";

const BUSY_MS = 2_000;
const IDLE_MS = 15_000;
const LEAST_MS = 400;
const KEPT_EVENTS = 1_000;
const SAMPLES = 60;
const LONGEST_RETRY_MS = 5_000;
const MOVES_KERNELS = /^(execution|kernel|lease)_|^missed$/;

/** {id, base, health, error}; one of them, unless this page shows all servers of a user. */
export const servers = signal([]);
/** Kernels of all servers in order, main kernels before their children; null before the first look. */
export const kernels = signal(null);
export const events = signal([]);
/** connecting, open, lost */
export const connection = signal("connecting");
/** Whether this is the page for all servers of a user, which lets in one browser for each address. */
export const ofAll = signal(false);
/** When a new version of the page has been installed behind this one. */
export const outdated = signal(false);

const samples = new Map();
const listeners = new Set();
let version = null;
let asked = false;
let looking = null;
let timer = null;
let lastLook = 0;
let stream = null;

export const kernelOf = (id) => kernels.value?.find((k) => k.resource_id === id) ?? null;
export const childrenOf = (kernel) => (kernels.value ?? []).filter((k) => k.home === kernel.resource_id);
export const samplesOf = (id) => samples.get(id) ?? { rss: [], cpu: [] };

/** Be told of every event: `heard(kind, data)`. Returns how to stop. */
export function onEvent(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

export const needsLook = () => {
  asked = true;
  schedule(150);
};

function schedule(wait) {
  clearTimeout(timer);
  if (document.hidden || locked.value) return;
  timer = setTimeout(look, Math.max(wait, lastLook + LEAST_MS - Date.now()));
}

async function look() {
  if (looking) return;
  asked = false;
  looking = lookAtAll();
  await looking;
  looking = null;
  lastLook = Date.now();
  const busy = kernels.value?.some((k) => k.busy || k.kernel_state === "restarting");
  schedule(asked ? 0 : busy ? BUSY_MS : IDLE_MS);
}

async function lookAtAll() {
  const known = await lookForServers();
  const found = await Promise.all(known.map(lookAt));
  if (!known.length && connection.value === "lost") return;
  batch(() => {
    servers.value = known.map((server, i) => ({ ...server, error: found[i].error ?? null }));
    kernels.value = found.flatMap((one) => one.kernels);
    keepSamples();
  });
}

async function lookForServers() {
  const known = servers.value;
  if (known.length && !known[0].many && connection.value === "open" && !known[0].error) return known;
  try {
    const health = await ask("", "/api/health");
    if (version && version !== health.version) outdated.value = true;
    version = health.version;
    ofAll.value = Boolean(health.servers);
    if (!health.servers) return [{ id: "", base: "", health }];
    return health.servers.map((one) => ({ id: one.id, base: `/servers/${one.id}`, health: one, many: true }));
  } catch (error) {
    connection.value = "lost";
    return known.map((one) => ({ ...one, error }));
  }
}

async function lookAt(server) {
  const before = (kernels.value ?? []).filter((k) => k.server === server.id);
  try {
    const { resources } = await ask(server.base, "/api/resources");
    const seen = Date.now() / 1000;
    return { kernels: resources.map((k) => ({ ...k, server: server.id, base: server.base, seen })) };
  } catch (error) {
    return { kernels: before, error };
  }
}

function keepSamples() {
  const there = new Set();
  for (const kernel of kernels.value) {
    there.add(kernel.resource_id);
    const kept = samplesOf(kernel.resource_id);
    samples.set(kernel.resource_id, {
      rss: [...kept.rss, kernel.rss_bytes ?? 0].slice(-SAMPLES),
      cpu: [...kept.cpu, kernel.cpu_percent ?? 0].slice(-SAMPLES),
    });
  }
  for (const id of samples.keys()) if (!there.has(id)) samples.delete(id);
}

// -- events --------------------------------------------------------------------------------

let lastId = null;

function heard(id, kind, data) {
  if (id) lastId = id;
  if (!kind) return;
  if (kind !== "missed") keepEvent(kind, data);
  if (MOVES_KERNELS.test(kind)) needsLook();
  for (const listener of listeners) listener(kind, data);
}

let pending = [];

/** Events of one moment are shown together: a thousand calls a second draw the page a few times. */
function keepEvent(kind, data) {
  pending.push({ kind, ...data });
  if (pending.length > 1) return;
  setTimeout(() => {
    events.value = [...events.value, ...pending].slice(-KEPT_EVENTS);
    pending = [];
  }, 60);
}

async function follow() {
  let wait = 250;
  const mine = (stream = new AbortController());
  while (!mine.signal.aborted) {
    try {
      await listen("", lastId, 300, heard, () => {
        wait = 250;
        connection.value = "open";
        needsLook();
      }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted || locked.value) return;
    }
    if (mine.signal.aborted) return;
    connection.value = "lost";
    await new Promise((after) => setTimeout(after, wait));
    wait = Math.min(LONGEST_RETRY_MS, wait * 2);
  }
}

/** Look and listen from now on, as long as somebody sees the page. */
export function begin() {
  stream?.abort();
  follow();
  look();
}

let hiding = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) {
    // A browser has six connections to a server: a page that nobody sees gives its own back.
    hiding = setTimeout(() => stream?.abort(), 5_000);
    clearTimeout(timer);
  } else {
    if (stream?.signal.aborted) follow();
    needsLook();
  }
});
addEventListener("pagehide", () => stream?.abort());
setInterval(() => {
  if (!document.hidden) clock.value = Date.now() / 1000;
}, 1_000);
