// The way to the servers: requests, their errors in one shape, the stream of events.

import { signal } from "./lib.js";

/** Whether a token is asked for. */
export const locked = signal(false);

export class ApiError extends Error {
  constructor(code, status, message) {
    super(message);
    this.code = code; // 0: nobody answered
    this.status = status;
  }
}

/** JSON of `path` on the server at `base`. Raises ApiError. */
export async function ask(base, path, { body, method = body ? "POST" : "GET", signal: stop } = {}) {
  const init = { method, signal: stop, headers: { accept: "application/json" } };
  if (body) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(base + path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  if (answer.status === 401 && path !== "/api/login") locked.value = true;
  throw new ApiError(answer.status, said.status ?? "error", said.message ?? `HTTP ${answer.status}`);
}

export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

/**
 * Server-sent events, read by fetch: unlike EventSource it can say where to resume after the
 * page was hidden, and sees why it was refused. Calls `heard(kind, data)`; returns at the end
 * of the stream, with the id of the last event.
 */
export async function listen(base, lastId, recent, heard, opened, stop) {
  const headers = lastId ? { "last-event-id": lastId } : {};
  const path = `/api/events${lastId ? "" : query({ recent })}`;
  const answer = await fetch(base + path, { headers, signal: stop, cache: "no-store" });
  if (answer.status === 401) locked.value = true;
  if (!answer.ok) throw new ApiError(answer.status, "error", `HTTP ${answer.status}`);
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) take(part, heard);
  }
}

function take(part, heard) {
  const fields = {};
  for (const line of part.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  heard(fields.id, fields.event, fields.data ? JSON.parse(fields.data) : null);
}
