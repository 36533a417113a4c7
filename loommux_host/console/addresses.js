// Which kernel an address means: by id, by name, or by a name that it had while this page was open.

import { effect } from "./lib.js";
import { kernels } from "./store.js";

const named = new Map();
const former = new Map();
let bound = null;

effect(() => {
  for (const { resource_id: id, name } of kernels.value ?? []) {
    const before = named.get(id);
    if (before !== undefined && before !== name) former.set(before, id);
    named.set(id, name);
  }
});

/** A part of an address; a % that begins nothing is one that somebody typed. */
function decoded(part) {
  return part.replace(/(?:%[0-9a-f]{2})+/gi, (run) => {
    try {
      return decodeURIComponent(run);
    } catch {
      return run;
    }
  });
}

/** #/, #/activity, #/kernel/ID/CELL/LINE?tab=…&stream=… */
export function parse(hash) {
  const [path, search] = hash.replace(/^#\/?/, "").split("?");
  const [screen, kernel, cell, line] = path.split("/").map(decoded);
  const query = Object.fromEntries(new URLSearchParams(search ?? ""));
  if (screen === "kernel" && kernel) return { screen, kernel, cell, line: Number(line) || null, query };
  return { screen: screen === "activity" ? "activity" : "fleet", query };
}

/** The same address, with another word for its kernel. */
export const withKernel = (hash, word) => hash.replace(/^(#\/?kernel\/)[^/?]+/, (_, before) => before + encodeURIComponent(word));

/**
 * The kernels that the word of an address may mean. More than one when several have the name.
 * A page that shows one goes on showing it, whatever it is called meanwhile.
 */
export function meant(word) {
  const all = kernels.value ?? [];
  const one = (id) => all.filter((kernel) => kernel.resource_id === id);
  if (bound?.word === word && one(bound.id).length) return one(bound.id);
  const found = one(word).length ? one(word) : all.filter((kernel) => kernel.name === word);
  return found.length ? found : one(former.get(word));
}

/** The kernel of an address; null while it is not clear which one. */
export function kernelAt(word) {
  const found = meant(word);
  return found.length === 1 ? found[0] : null;
}

/** The word that the address of a kernel screen should have by now. */
export function wordNow(word) {
  const kernel = kernelAt(word);
  if (!kernel) return word;
  const { resource_id: id, name } = kernel;
  const unique = kernels.value.filter((other) => other.name === name).length === 1;
  const now = word === id || word === name ? word : unique ? name : id;
  bound = { word: now, id };
  return now;
}

/** The page shows no kernel: the next address is read as it stands. */
export function unbind() {
  bound = null;
}
