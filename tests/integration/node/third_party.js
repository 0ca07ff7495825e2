// Reads tensors of another process by TensorService, changes them, and writes a part back; knows only the .proto files.
//
//     node third_party.js PROTOS ADDRESS REFS_JSON
//
// Prints what it read as one JSON object: the sums of float32 tensors by name.
const crypto = require("node:crypto");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [, , protos, address, refsJson] = process.argv;
const definition = loader.loadSync("podrace/tensor/v1/tensor.proto", {
  includeDirs: [path.resolve(protos)],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
});
const { podrace } = grpc.loadPackageDefinition(definition);
const service = new podrace.tensor.v1.TensorService(address, grpc.credentials.createInsecure());
const refs = JSON.parse(refsJson);
const deadline = () => new Date(Date.now() + 20_000);
const digest = (data) => crypto.createHash("sha256").update(data).digest("hex");

// Offset of a box's row in the flat elements of its tensor, one row after the other in C order.
function* rows(shape, starts, sizes) {
  const outer = shape.length - 1;
  const index = new Array(outer).fill(0);
  const count = sizes.slice(0, outer).reduce((product, size) => product * size, 1);
  for (let row = 0; row < count; row += 1) {
    let offset = 0;
    for (let dimension = 0; dimension < outer; dimension += 1) {
      offset = offset * shape[dimension] + starts[dimension] + index[dimension];
    }
    yield offset * shape[outer] + starts[outer];
    for (let dimension = outer - 1; dimension >= 0; dimension -= 1) {
      index[dimension] += 1;
      if (index[dimension] < sizes[dimension]) break;
      index[dimension] = 0;
    }
  }
}

function read() {
  const tensors = new Map(
    refs.map((ref) => [ref.spec.name, new Float32Array(ref.spec.shape.reduce((a, b) => a * b, 1))]),
  );
  return new Promise((resolve, reject) => {
    const stream = service.ReadTensors({ tensors: refs }, { deadline: deadline() });
    stream.on("data", ({ chunk }) => {
      if (digest(chunk.data) !== chunk.digest) reject(new Error("a chunk arrived damaged"));
      const values = new Float32Array(new Uint8Array(chunk.data).buffer);
      const width = chunk.sizes[chunk.sizes.length - 1];
      let taken = 0;
      for (const offset of rows(chunk.tensor.spec.shape, chunk.starts, chunk.sizes)) {
        tensors.get(chunk.tensor.spec.name).set(values.subarray(taken, taken + width), offset);
        taken += width;
      }
    });
    stream.on("error", reject);
    stream.on("end", () => resolve(tensors));
  });
}

// The first row of each tensor, doubled.
function write(tensors) {
  return new Promise((resolve, reject) => {
    const stream = service.WriteTensors({ deadline: deadline() }, (error, response) =>
      error ? reject(error) : resolve(response),
    );
    for (const ref of refs) {
      const { name, shape } = ref.spec;
      const sizes = [1, ...shape.slice(1)];
      const doubled = tensors.get(name).slice(0, sizes.reduce((a, b) => a * b, 1)).map((value) => value * 2);
      const data = Buffer.from(doubled.buffer);
      const starts = shape.map(() => 0);
      stream.write({ chunk: { tensor: ref, starts, sizes, data, digest: digest(data) } });
    }
    stream.end();
  });
}

async function main() {
  const tensors = await read();
  const written = await write(tensors);
  const sums = {};
  for (const [name, values] of tensors) sums[name] = values.reduce((sum, value) => sum + value, 0);
  console.log(JSON.stringify({ sums, written: written.size_bytes }));
  service.close();
}

main().catch((error) => {
  console.error(`${error.code ?? ""} ${error.details ?? error.message}`);
  process.exit(1);
});
