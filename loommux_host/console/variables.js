// The kernel's variables, read when asked for: no code of the user's runs for it, a running cell goes on.

import { ask } from "./api.js";
import { Component, html, plural, size } from "./lib.js";
import { Empty } from "./parts.js";
import { onEvent } from "./store.js";

const sizeOf = (one) => (Array.isArray(one.size) ? one.size.join(" × ") : one.size == null ? "" : one.size.toLocaleString("en"));

export class Variables extends Component {
  state = { answer: null, error: null, filter: "" };

  componentDidMount() {
    this.read();
    this.stop = onEvent((kind, data) => kind === "execution_ended" && data.kernel === this.props.kernel.resource_id && this.read());
  }

  componentWillUnmount() {
    this.stop();
  }

  async read() {
    const { base, resource_id } = this.props.kernel;
    try {
      this.setState({ answer: await ask(base, `/api/resources/${resource_id}/variables`), error: null });
    } catch (error) {
      this.setState({ error });
    }
  }

  render({ kernel }, { answer, error, filter }) {
    if (!answer && !error) return html`<div class="loading" role="status">Reading…</div>`;
    const found = (answer?.variables ?? []).filter((one) => one.name.toLowerCase().includes(filter.toLowerCase())).reverse();
    const type = (event) => this.setState({ filter: event.target.value });
    return html`<section class="variables" aria-label="Variables">
      <div class="bar">
        <input type="search" placeholder="Filter by name" aria-label="Filter by name" value=${filter} onInput=${type} />
        <button onClick=${() => this.read()}>Read again</button>
        <span class="spacer"></span>
        <span class="quiet">${answer ? plural(answer.total, "variable") : ""}${answer?.process ? ` · process ${answer.process}` : ""}</span>
      </div>
      ${error && html`<p class="note bad" role="alert">${error.message}</p>`}
      ${found.length
        ? html`<table class="names"><thead><tr><th>Name</th><th>Type</th><th class="num">Size</th><th class="num">Bytes</th><th>Preview</th></tr></thead><tbody>
            ${found.map((one) => html`<tr key=${one.name}><td class="name">${one.name}</td><td class="type">${one.type}</td><td class="num">${sizeOf(one)}</td>
              <td class="num">${one.bytes == null ? "" : size(one.bytes)}</td><td><code>${one.preview ?? html`<span class="quiet">only its own code could show it</span>`}</code></td></tr>`)}
          </tbody></table>`
        : answer && html`<${Empty} title=${filter ? "No such name" : "No variables"}><p class="quiet">${filter ? "" : kernel.kernel_state === "stopped" ? "The kernel has no process now." : "What cells define appears here."}</p><//>`}
    </section>`;
  }
}
