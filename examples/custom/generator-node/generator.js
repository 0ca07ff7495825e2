// Generator plugin in JavaScript: proposes children of the best candidate, each with another discount. Uses only the
// .proto files of podrace.
//
//     npm install
//     node generator.js PROTOS [ADDRESS]      (PROTOS: the folder protos/ of podrace; ADDRESS: 127.0.0.1:0)
//
// Prints one line, `serves ADDRESS`. A specification then says
//
//     [evolution]
//     generator = "grpc://127.0.0.1:50071"
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [, , protos, listen = "127.0.0.1:0"] = process.argv;
const definition = loader.loadSync("podrace/evolution/v1/evolution.proto", {
  includeDirs: [path.resolve(protos)],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
  arrays: true,
});
const { podrace } = grpc.loadPackageDefinition(definition);

const DISCOUNTS = [0.97, 0.98, 0.99, 0.995];
// A google.protobuf.Struct of numbers.
const struct = (values) => ({
  fields: Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { numberValue: value }])),
});

const service = {
  ProposeAgent({ request }, callback) {
    const [best] = request.candidates;
    if (!best) {
      callback(null, { fresh: {}, reason: "no candidate has been scored yet" });
      return;
    }
    // The seed exceeds the range of exact integers in JavaScript.
    const discount = DISCOUNTS[Number(BigInt(request.seed) % BigInt(DISCOUNTS.length))];
    callback(null, {
      child: { candidate_id: best.candidate.candidate_id, hyperparameters: struct({ discount }) },
      reason: `the best of ${request.candidates.length}`,
    });
  },
};

const server = new grpc.Server();
// JudgeCandidate stays UNIMPLEMENTED.
server.addService(podrace.evolution.v1.EvolutionService.service, service);
server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(`serves ${listen.slice(0, listen.lastIndexOf(":"))}:${port}`);
});
