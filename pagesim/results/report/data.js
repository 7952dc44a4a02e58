// Data: arrays and plotly.js, stored deflated in base64; each is inflated once.

function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

// The page's content security policy allows this script by its hash.
async function runDeflated(holder) {
  const script = make("script", { textContent: await inflated(holder.textContent).text() });
  holder.replaceWith(script);
}

async function unpack(packed) {
  const raw = await inflated(packed.deflated).arrayBuffer();
  if (packed.type === "Float64Array") return new Float64Array(raw);
  const whole = new Int32Array(raw);
  if (packed.type === "Int32Array") return whole;
  for (let i = 1; i < whole.length; i += 1) whole[i] += whole[i - 1];  // stored as differences
  if (packed.type === "Names") return Array.from(whole, String);
  return Float64Array.from(whole, (part) => (part < 0 ? (part === -1 ? NaN : Infinity) : part / packed.scale));
}

async function unpackAll(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    // There are many names, and none holds anything to unpack.
    return value.length && typeof value[0] === "object" ? Promise.all(value.map(unpackAll)) : value;
  }
  if (typeof value.deflated === "string" && typeof value.type === "string") return unpack(value);
  const pairs = Object.entries(value).map(async ([name, inner]) => [name, await unpackAll(inner)]);
  return Object.fromEntries(await Promise.all(pairs));
}
