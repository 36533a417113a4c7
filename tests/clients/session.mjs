// One session of a TypeScript client against loommux: state, an error, an image. Prints one JSON line.
// usage: node session.mjs v1|v2|v2-modern stdio COMMAND [ARG …]  |  node session.mjs v1|v2|v2-modern http URL
const [generation, transportKind, target, ...rest] = process.argv.slice(2);

const libraries = {
  v1: async () => ({
    Client: (await import("@modelcontextprotocol/sdk/client/index.js")).Client,
    Stdio: (await import("@modelcontextprotocol/sdk/client/stdio.js")).StdioClientTransport,
    Http: (await import("@modelcontextprotocol/sdk/client/streamableHttp.js")).StreamableHTTPClientTransport,
  }),
  v2: async () => {
    const client = await import("@modelcontextprotocol/client");
    return {
      Client: client.Client,
      Stdio: (await import("@modelcontextprotocol/client/stdio")).StdioClientTransport,
      Http: client.StreamableHTTPClientTransport,
    };
  },
};
const { Client, Stdio, Http } = await libraries[generation.slice(0, 2)]();
const options = generation === "v2-modern" ? { versionNegotiation: { mode: "auto" } } : {};
const transport =
  transportKind === "stdio"
    ? new Stdio({ command: target, args: rest, env: process.env, stderr: "inherit" })
    : new Http(new URL(target));
const client = new Client({ name: `typescript-${generation}`, version: "1.0.0" }, options);
await client.connect(transport);
const era = client.getProtocolEra?.() ?? "legacy"; // v1 knows one era only

let kernel = {};
async function call(name, args) {
  const result = await client.callTool({ name, arguments: { ...args, ...kernel } });
  const text = result.content.filter((b) => b.type === "text").map((b) => b.text).join("");
  const handle = text.match(/k_[A-Za-z0-9_-]+/);
  if (handle && !kernel.kernel) kernel = { kernel: handle[0] };
  return { text, isError: result.isError ?? false, kinds: result.content.map((b) => b.type), result };
}

const tools = (await client.listTools()).tools.map((t) => t.name);
await call("run_cell", { freeform: "x = 41" });
const kept = await call("run_cell", { freeform: "x + 1" });
const failed = await call("run_cell", { freeform: "1 / 0" });
const picture = await call("run_cell", {
  freeform: "from PIL import Image\nImage.new('RGB', (8, 8), 'red')",
});
const image = picture.result.content.find((b) => b.type === "image");
const refused = await call("read_output", { execution: 99 });
await client.close();
console.log(
  JSON.stringify({
    era,
    tools,
    kept: kept.text,
    failed: { text: failed.text, isError: failed.isError },
    image: image && { mimeType: image.mimeType, bytes: Buffer.from(image.data, "base64").length },
    refused: { text: refused.text, isError: refused.isError },
  }),
);
