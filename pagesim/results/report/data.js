// Data: arrays were deflated and written in base64; each becomes a typed array again, once.

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.deflated), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = await new Response(stream).arrayBuffer();
  return packed.type === "Float64Array" ? new Float64Array(raw) : new Int32Array(raw);
}

async function unpackAll(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    // Names are many and hold nothing to unpack.
    return value.length && typeof value[0] === "object" ? Promise.all(value.map(unpackAll)) : value;
  }
  if (typeof value.deflated === "string" && typeof value.type === "string") return unpack(value);
  const pairs = Object.entries(value).map(async ([name, inner]) => [name, await unpackAll(inner)]);
  return Object.fromEntries(await Promise.all(pairs));
}
