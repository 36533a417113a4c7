// How a browser gets in: with the server's token, or at the console of all servers with an address of its own.

import { ask, locked } from "./api.js";
import { Component, html } from "./lib.js";
import { toasts } from "./parts.js";
import { begin } from "./store.js";

/** Raises ApiError. */
export async function login(token) {
  await ask("", "/api/login", { body: { token } });
  locked.value = false;
  toasts.value = [];
  begin();
}

/** A whole address may be pasted where its token is asked for. */
const tokenOf = (typed) => decodeURIComponent(/#token=([^&\s]+)/.exec(typed)?.[1] ?? typed);

export class Login extends Component {
  state = { by: null, refused: "" };

  async componentDidMount() {
    const { by } = await ask("", "/api/login").catch(() => ({ by: "token" }));
    this.setState({ by });
  }

  go = async (event) => {
    event.preventDefault();
    try {
      await login(tokenOf(event.target.elements.token.value.trim()));
    } catch (error) {
      this.setState({ refused: error.message });
    }
  };

  render(_, { by, refused }) {
    if (by === null) return html`<main class="login" aria-label="Login"></main>`;
    return html`<main class="login" aria-label="Login">
      <form onSubmit=${this.go}>
        <img src="/console/icon.svg" alt="" width="40" height="40" />
        <h1>loommux</h1>
        ${by === "address" ? html`<${ByAddress} />` : html`<p>This server asks for its token: the content of <code>auth_token_file</code>, or the one it printed when it started.</p>`}
        <label>${by === "address" ? "Address" : "Token"} <input name="token" type=${by === "address" ? "text" : "password"} autocomplete=${by === "address" ? "off" : "current-password"} spellcheck=${false} required autofocus /></label>
        ${refused && html`<p class="note bad" role="alert">${refused}</p>`}
        <button class="primary" type="submit">Open the console</button>
      </form>
    </main>`;
  }
}

const ByAddress = () => html`<p>Each address of this console lets in one browser, and this one is not in yet. Get an address of its own:</p>
  <ul>
    <li>in the browser that is already in, press <b>Other browser</b> at the top; or</li>
    <li>in a terminal on that machine, run <code>loommux console</code> once more.</li>
  </ul>
  <p>Open it here, or paste it:</p>`;
