// Clients and messages of the contracts of podrace, read from the .proto files of this package.
const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const PROTOS = path.join(__dirname, "protos");
const { version } = require("./package.json");

function files(folder) {
  return fs
    .readdirSync(folder, { withFileTypes: true })
    .flatMap((entry) => {
      const name = path.join(folder, entry.name);
      return entry.isDirectory() ? files(name) : [name];
    })
    .filter((name) => name.endsWith(".proto"))
    .sort();
}

// Names as in the protos. Integers of 64 bits are texts, because a JavaScript number cannot hold all of them.
const definitions = loader.loadSync(files(PROTOS), {
  includeDirs: [PROTOS],
  keepCase: true,
  longs: String,
  enums: String,
  defaults: true,
  arrays: true,
  oneofs: true,
});
const packages = grpc.loadPackageDefinition(definitions);

// Returns a client of a service, for instance connect("podrace.orchestrator.v1.OrchestratorService", "127.0.0.1:50051").
// With a token, each call identifies its caller. `credentials` are those of a channel; without them there is no TLS.
function connect(service, address, { token, credentials, options } = {}) {
  const Client = service.split(".").reduce((found, name) => found?.[name], packages);
  if (typeof Client !== "function" || !Client.service) throw new Error(`there is no service ${service}`);
  const interceptor = (parameters, next) =>
    new grpc.InterceptingCall(next(parameters), {
      start(metadata, listener, start) {
        if (token) metadata.set("authorization", `Bearer ${token}`);
        start(metadata, listener);
      },
    });
  return new Client(address, credentials ?? grpc.credentials.createInsecure(), {
    ...options,
    interceptors: [interceptor],
  });
}

// Makes a unary call and waits for the server to be reachable; rejects with the error of gRPC after the deadline.
function call(client, method, request, { seconds = 5 } = {}) {
  const metadata = new grpc.Metadata({ waitForReady: true });
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 1000 * seconds;
    client[method](request, metadata, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Returns the bytes of a message as an object, for instance decode("podrace.checkpoint.v1.Manifest", bytes).
function decode(message, bytes) {
  const definition = definitions[message];
  if (!definition?.deserialize) throw new Error(`there is no message ${message}`);
  return definition.deserialize(bytes);
}

// Returns the details of an error of a call: { reason, metadata, violations, resource, retrySeconds }.
function errorDetails(error) {
  const [bytes] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const found = { reason: "", metadata: {}, violations: [], resource: null, retrySeconds: null };
  for (const { type_url: url, value } of bytes ? decode("google.rpc.Status", bytes).details : []) {
    const name = url.slice(url.lastIndexOf("/") + 1);
    if (!definitions[name]) continue;
    const detail = decode(name, value);
    if (name === "google.rpc.ErrorInfo") Object.assign(found, { reason: detail.reason, metadata: detail.metadata });
    if (name === "google.rpc.BadRequest") found.violations = detail.field_violations;
    if (name === "google.rpc.ResourceInfo") found.resource = detail;
    if (name === "google.rpc.RetryInfo") {
      found.retrySeconds = Number(detail.retry_delay.seconds) + detail.retry_delay.nanos / 1e9;
    }
  }
  return found;
}

// The serialized google.protobuf.FileDescriptorSet of all contracts.
const descriptorSet = () => fs.readFileSync(path.join(__dirname, "contracts.binpb"));

module.exports = { version, protos: PROTOS, grpc, ...packages, connect, call, decode, errorDetails, descriptorSet };
