// What a person can do to kernels. Whatever ends something says first what that is.

import { ask } from "./api.js";
import { configurations } from "./configuration.js";
import { cellName, copy, headline, html, plural, sender, short, size, span } from "./lib.js";
import { dialog, say } from "./parts.js";
import { childrenOf, kernels, needsLook, servers } from "./store.js";

const pathOf = (kernel, act) => `/api/resources/${kernel.resource_id}/${act}`;

async function carryOut(work, done) {
  try {
    const answer = await work();
    if (done) say(done(answer));
    return answer;
  } catch (error) {
    say(error.message, true);
    return null;
  } finally {
    needsLook();
  }
}

const running = (kernel) => {
  const cell = kernel.current_execution;
  return cell && `${cellName(cell)} “${headline(cell.source).slice(0, 60)}”, which has run for ${span(cell.elapsed_seconds)}`;
};

/** What ends with these kernels, line by line. */
function losses(chosen, { process = false } = {}) {
  const lines = [];
  for (const kernel of chosen) {
    const cell = running(kernel);
    if (cell) lines.push(html`<li>${cell}, in <b><bdi>${short(kernel.name)}</bdi></b></li>`);
    const working = new Set([...kernel.leases.filter((l) => l.held).map((l) => l.holder || "a session"), ...kernel.attached_clients]);
    if (working.size) lines.push(html`<li>the work of ${[...working].join(", ")} in <b><bdi>${short(kernel.name)}</bdi></b></li>`);
    if (kernel.rss_bytes) lines.push(html`<li>all variables of <b><bdi>${short(kernel.name)}</bdi></b> (the process holds ${size(kernel.rss_bytes)})</li>`);
  }
  if (!process) {
    const cells = chosen.reduce((sum, kernel) => sum + kernel.execution_count, 0);
    lines.push(html`<li>the records of ${plural(cells, "execution")}</li>`);
  }
  return lines;
}

function confirm({ title, verb, says, lines, act }) {
  dialog.value = (close) => {
    const go = () => {
      close();
      act();
    };
    return html`<form method="dialog" onSubmit=${(event) => (event.preventDefault(), go())}>
      <h2 id="dialog-title">${title}</h2>
      ${says && html`<p>${says}</p>`}
      ${lines?.length ? html`<p>This ends:</p><ul class="losses">${lines}</ul>` : null}
      <footer>
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class="danger" autofocus>${verb}</button>
      </footer>
    </form>`;
  };
}

export function interrupt(kernel, cell = kernel.current_execution) {
  if (!cell) return say(`${short(kernel.name)} runs nothing.`);
  const body = cell.execution == null ? {} : { execution: cell.execution };
  confirm({
    title: `Interrupt ${cellName(cell)} of ${short(kernel.name)}?`,
    verb: "Interrupt",
    says: html`Only this cell and the processes it started. Variables stay. ${sender(cell.origin)} is told.`,
    lines: [html`<li>${running({ ...kernel, current_execution: cell })}</li>`],
    act: () =>
      carryOut(
        () => ask(kernel.base, pathOf(kernel, "interrupt"), { body }),
        (answer) => answer.message?.replace(/Use wait\(\).*$/, "") ?? `${cellName(cell)}: ${answer.status}.`,
      ),
  });
}

export const restart = (kernel) =>
  confirm({
    title: `Restart ${short(kernel.name)}?`,
    verb: "Restart",
    says: "A new process takes the place of the old one. Records stay. Whoever works here is told.",
    lines: losses([kernel], { process: true }),
    act: () =>
      carryOut(
        () => ask(kernel.base, pathOf(kernel, "restart"), { body: {} }),
        (answer) => `${short(kernel.name)} has process ${answer.new_process} now (pid ${answer.new_pid}).`,
      ),
  });

export function recycle(chosen) {
  const going = chosen.flatMap((kernel) => [kernel, ...childrenOf(kernel)]);
  const all = going.filter((kernel, i) => going.findIndex((one) => one.resource_id === kernel.resource_id) === i);
  const tops = chosen.filter((kernel) => !chosen.some((one) => one.resource_id === kernel.home));
  const extra = all.length - chosen.length;
  confirm({
    title: chosen.length === 1 ? `Recycle ${short(chosen[0].name)}?` : `Recycle ${chosen.length} kernels?`,
    verb: chosen.length === 1 ? "Recycle" : `Recycle ${plural(all.length, "kernel")}`,
    says: html`The kernel ends for good${extra > 0 ? html`, with ${plural(extra, "child", "children")}` : ""}. Whoever comes back to it is told that it was recycled here.`,
    lines: losses(all),
    act: async () => {
      const ended = [];
      for (const kernel of tops) {
        if (await carryOut(() => ask(kernel.base, pathOf(kernel, "recycle"), { body: { force: true } }))) ended.push(short(kernel.name));
      }
      if (ended.length) say(`Recycled ${ended.length > 5 ? plural(ended.length, "kernel") : ended.join(", ")}.`);
    },
  });
}

export function rename(kernel) {
  dialog.value = (close) => {
    const go = (event) => {
      event.preventDefault();
      const name = event.target.elements.name.value.trim();
      close();
      if (!name || name === kernel.name) return;
      carryOut(
        () => ask(kernel.base, pathOf(kernel, "rename"), { body: { name } }),
        (answer) => `It is called ${answer.name} now.`,
      );
    };
    return html`<form onSubmit=${go}>
      <h2 id="dialog-title">Rename <bdi>${short(kernel.name)}</bdi></h2>
      <label>New name <input name="name" value=${kernel.name} maxlength="256" required autofocus /></label>
      <p class="quiet">Whoever works here is told. A taken name gets a number.</p>
      <footer><button type="button" onClick=${close}>Cancel</button><button type="submit" class="primary">Rename</button></footer>
    </form>`;
  };
}

export async function exportNotebook(kernel) {
  try {
    const answer = await fetch(`${kernel.base}${pathOf(kernel, "notebook")}`);
    if (!answer.ok) throw new Error((await answer.json()).message);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${kernel.name}.ipynb`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    say(`No notebook: ${error.message}`, true);
  }
}

// -- what is copied --------------------------------------------------------------------------

const Copied = ({ label, name = label, text, note }) => html`<figure class="copied">
  <figcaption><span>${label}</span><button type="button" aria-label=${`Copy: ${name}`} onClick=${() => (copy(text), say("Copied."))}>Copy</button></figcaption>
  <pre tabindex="0" aria-label=${name}>${text}</pre>
  ${note && html`<p class="quiet">${note}</p>`}
</figure>`;

export function attach(kernel) {
  if (!kernel.attach_command) return say(`${short(kernel.name)} has no process to attach to.`, true);
  dialog.value = (close) => html`<h2 id="dialog-title">Attach to <bdi>${short(kernel.name)}</bdi></h2>
    <p>Any Jupyter client works: its cells share names and numbers with the agent’s, and the agent is told of them. With the first two, Ctrl-C interrupts the running cell.</p>
    <${Copied} label="In a terminal" text=${`loommux attach ${kernel.resource_id}`} />
    <${Copied} label="In a window" text=${`loommux attach ${kernel.resource_id} --qtconsole`} />
    <${Copied} label="Jupyter’s terminal client" text=${kernel.attach_command} />
    <${Copied} label="Qt console" text=${kernel.qtconsole_command} />
    <${Copied} label="Connection file, for other clients" text=${kernel.connection_file} />
    <footer><button type="button" onClick=${close} autofocus>Close</button></footer>`;
}

export async function configure(kernel) {
  const home = (kernel.home && kernels.value.find((one) => one.resource_id === kernel.home)) || kernel;
  const known = servers.value.find((one) => one.id === kernel.server)?.health;
  // The page for all servers knows less of each than the server itself.
  const own = await ask(kernel.base, "/api/health").catch(() => ({}));
  const hosts = configurations(home, { ...known, ...own });
  dialog.value = (close) => html`<h2 id="dialog-title">MCP configuration for <bdi>${short(home.name)}</bdi></h2>
    ${home.scope === "private" && html`<p>This kernel is private to its session; a client configured so gets a kernel of its own. Rename does not change that.</p>`}
    <div class="hosts">${hosts.map(({ host, file, text, note }) => html`<${Copied} key=${host} name=${`${host}, ${file}`} label=${html`<b>${host}</b> <span class="quiet">${file}</span>`} text=${text} note=${note} />`)}</div>
    <footer><button type="button" onClick=${close} autofocus>Close</button></footer>`;
}

/** An address for one more browser, at the page of all servers. */
export async function invite() {
  try {
    const { ticket } = await ask("", "/api/ticket", { body: {} });
    dialog.value = (close) => html`<h2 id="dialog-title">Open the console in another browser</h2>
      <p>This address lets in one browser, once. A newer one replaces it.</p>
      <${Copied} label="Address" text=${`${location.origin}/#token=${ticket}`} />
      <footer><button type="button" onClick=${close} autofocus>Close</button></footer>`;
  } catch (error) {
    say(`No address: ${error.message}`, true);
  }
}
