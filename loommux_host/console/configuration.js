// What an MCP host has to be told so that it works in a kernel, for the hosts that people use.
//
// No token is written into a configuration: each host names the place that it reads the token from.

import { plainName } from "./lib.js";

const TOKEN_FILE = "~/.config/loommux/token";
const VARIABLE = "LOOMMUX_TOKEN";

/** A word for a POSIX shell. */
const word = (text) => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const line = (words) => words.map(word).join(" ");
const json = (value) => JSON.stringify(value, null, 2);

/** Where the server's MCP is: {url} of a port, or {socket, path}. */
function placeOf(health) {
  const path = health?.mcp_path ?? "/mcp";
  const socket = /^unix:(.*), MCP at /.exec(health?.endpoint ?? "")?.[1];
  if (socket) return { socket: path === "/mcp" ? `unix:${socket}` : `http+unix://${encodeURIComponent(socket)}${path}` };
  return { url: health?.endpoint ?? `${location.origin}${path}` };
}

/** [{host, file, text, note}] for a kernel of the server that said `health` of itself. */
export function configurations(kernel, health) {
  const program = health?.program ?? "loommux";
  if (health?.transport === "stdio") {
    return [
      { host: "On this machine", file: "in a terminal", text: "loommux install", note: "Writes the entry of every host that it finds." },
      { host: "By hand", file: "any host", text: json({ mcpServers: { loommux: { command: program, args: [] } } }) },
    ];
  }
  const { url, socket } = placeOf(health);
  const resource = kernel.scope === "named" || kernel.home ? kernel.name : null;
  const token = Boolean(health?.token_needed);
  const named = resource == null ? [] : ["--resource", resource];
  const connect = { command: program, args: ["connect", socket ?? url, ...named, ...(token ? ["--token-file", TOKEN_FILE] : [])] };
  const desktop = {
    host: "Claude Desktop",
    file: "claude_desktop_config.json",
    text: json({ mcpServers: { loommux: connect } }),
    note: `Its file cannot name a URL: loommux itself forwards.${token ? ` The token stays in ${TOKEN_FILE}.` : ""}`,
  };
  if (socket) return [{ ...desktop, host: "Any host", file: "its file for MCP servers", note: "The server listens on a socket: loommux itself forwards." }];
  return [installed(url, named, token), ...remote(url, resource, token), desktop];
}

function installed(url, named, token) {
  const flags = ["--http", url, ...named, ...(token ? ["--token-file", TOKEN_FILE] : [])];
  const note = `Writes the entry of every host that it finds; --client HOST names one.${token ? " With --token-file loommux forwards, so the token stays in that file." : ""}`;
  return { host: "With loommux", file: "in a terminal", text: line(["loommux", "install", ...flags]), note };
}

/** The hosts that can connect to a URL. */
function remote(url, resource, token) {
  const headers = resource == null ? {} : { "X-Loommux-Resource": plainName(resource) };
  const bearer = (value) => (token ? { ...headers, Authorization: `Bearer ${value}` } : headers);
  const environment = (where) => (token ? `It reads the token from the variable ${VARIABLE}${where}.` : "");
  const inputs = [{ type: "promptString", id: "loommux-token", description: "Token of the loommux server", password: true }];
  const code = { servers: { loommux: { type: "http", url, headers: bearer("${input:loommux-token}") } } };
  return [
    token
      ? { host: "Claude Code", file: ".mcp.json", text: json({ mcpServers: { loommux: { type: "http", url, headers: bearer(`\${${VARIABLE}}`) } } }), note: environment(" of the terminal that it is started in") }
      : { host: "Claude Code", file: "in a terminal", text: line(["claude", "mcp", "add", "--transport", "http", "loommux", url, ...Object.entries(headers).flatMap(([name, value]) => ["--header", `${name}: ${value}`])]) },
    { host: "Cursor", file: ".cursor/mcp.json", text: json({ mcpServers: { loommux: { url, headers: bearer(`\${env:${VARIABLE}}`) } } }), note: environment(" of the environment that it is started in") },
    { host: "VS Code", file: ".vscode/mcp.json", text: json(token ? { inputs, ...code } : code), note: token ? "It asks for the token once and keeps it in its own secret storage." : "" },
    { host: "Codex", file: "~/.codex/config.toml", text: codex(url, headers, token), note: environment(" of the terminal that it is started in") },
  ];
}

function codex(url, headers, token) {
  const own = Object.entries(headers).map(([name, value]) => `"${name}" = "${value}"`);
  return [
    "[mcp_servers.loommux]",
    `url = "${url}"`,
    ...(own.length ? [`http_headers = { ${own.join(", ")} }`] : []),
    ...(token ? [`bearer_token_env_var = "${VARIABLE}"`] : []),
    "tool_timeout_sec = 300",
  ].join("\n");
}
