// Rows of numbers in a file of safetensors: the length of a header, the header in JSON, then float32 or float16.

export class Rows {
  constructor(buffer) {
    const length = Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    const { dtype, shape, data_offsets } = header["embedding.weight"] ?? header["embeddings"];
    const [start, end] = data_offsets.map((offset) => 8 + length + offset);
    const read = { F32: (bytes) => new Float32Array(bytes), F16: (bytes) => new Uint16Array(bytes) }[dtype];
    if (!read) throw new Error(`Rows are ${dtype}; F32 or F16 was expected.`);
    [this.count, this.dim] = shape;
    this.values = read(buffer.slice(start, end));
    this.number = dtype === "F16" ? half : (value) => value;
  }

  static async load(address) {
    return new Rows(await (await fetched(address)).arrayBuffer());
  }

  // One row, as float32.
  row(place) {
    return Float32Array.from(this.values.subarray(place * this.dim, (place + 1) * this.dim), this.number);
  }
}

// The number of which these are the 16 bits: a sign, 5 bits of exponent, 10 of fraction.
function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 1023) / 1024;
  const size = exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14;
  return bits >> 15 ? -size : size;
}

export async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status} ${answer.statusText}`);
  return answer;
}
