// Trains on CartPole, waits for the end, fetches the policy of the champion, verifies it, and acts with it.
//
//     npm install build/contracts/podrace-contracts-VERSION.tgz       (make contracts)
//     node champion.js ORCHESTRATOR [TOKEN]
//
// Uses nothing but the package: the specification is a message, and the policy is computed here.
const crypto = require("node:crypto");
const { connect, call, errorDetails } = require("podrace-contracts");

const [, , address, token = ""] = process.argv;
const EPISODES = 10;
const SOLVED = 475;
const SPEC = {
  name: "cartpole",
  environment: { id: "cartpole", count: 16 },
  algorithms: {
    ppo: {
      hyperparameters: {
        learning_rate: { value: { numberValue: 3e-3 } },
        discount: { value: { numberValue: 0.98 } },
        gae_lambda: { value: { numberValue: 0.9 } },
        horizon: { value: { numberValue: 32 } },
        epochs: { value: { numberValue: 10 } },
        minibatch_size: { value: { numberValue: 256 } },
        normalize_observations: { value: { boolValue: false } },
        normalize_rewards: { value: { boolValue: false } },
      },
    },
  },
  objective: { target_return: SOLVED, wall_clock_duration: { seconds: 300 } },
  pool: { maximum_pods: 1 },
  assignment: { environment_steps: 150_000 },
  evaluation: { episodes: 32, every_environment_steps: 10_000, share: 0.3 },
};

const digestOf = (data) => crypto.createHash("sha256").update(data).digest("hex");
const check = (holds, problem) => {
  if (!holds) throw new Error(problem);
};

async function train(orchestrator) {
  const request = { request_id: crypto.randomUUID(), spec: SPEC, labels: { "started-by": "champion.js" } };
  const { tournament } = await call(orchestrator, "CreateTournament", request, { seconds: 10 });
  console.log(`training ${tournament.tournament_id}`);
  return tournament.tournament_id;
}

// Follows a tournament to its end; after UNAVAILABLE a new stream continues behind the last event.
async function follow(orchestrator, tournamentId) {
  let resumeToken = "0";
  let tournament = null;
  while (!/COMPLETED|CANCELLED|FAILED/.test(tournament?.state ?? "")) {
    const stream = orchestrator.WatchTournament({ tournament_id: tournamentId, resume_token: resumeToken });
    try {
      for await (const update of stream) {
        resumeToken = update.resume_token;
        tournament = update.tournament;
        for (const event of update.events) console.log(`${event.kind} ${event.message}`);
      }
    } catch (error) {
      if (errorDetails(error).retrySeconds === null && error.code !== 14) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
  check(tournament.state === "TOURNAMENT_STATE_COMPLETED", `${tournament.state}: ${tournament.reason}`);
  return tournament;
}

// Reads a part of a checkpoint, and compares the digest of each chunk and of the whole.
async function readPart(checkpoints, tournamentId, manifestDigest, digest) {
  const chunks = [];
  const request = { tournament_id: tournamentId, manifest_digest: manifestDigest, digest };
  for await (const chunk of checkpoints.ReadPart(request)) {
    check(digestOf(chunk.data) === chunk.digest, `a chunk of ${digest} is damaged`);
    chunks.push(chunk.data);
  }
  const data = Buffer.concat(chunks);
  check(digestOf(data) === digest, `${digest}: the bytes have another digest`);
  return data;
}

// Tensors of a safetensors file: a JSON header of little-endian length, then the numbers.
function tensorsOf(data) {
  const headerBytes = Number(data.readBigUInt64LE(0));
  const header = JSON.parse(data.subarray(8, 8 + headerBytes).toString());
  const types = { F32: Float32Array, I64: BigInt64Array };
  return Object.fromEntries(
    Object.entries(header)
      .filter(([name]) => name !== "__metadata__")
      .map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
        // Copied, because numbers must be aligned.
        const bytes = new Uint8Array(data.subarray(8 + headerBytes + begin, 8 + headerBytes + end));
        return [name, { shape, values: new types[dtype](bytes.buffer) }];
      }),
  );
}

// A policy without torso and recurrence, with one of several actions: steps 1, 3 and 5 of PolicySpec.
class Policy {
  constructor(description, tensors) {
    const { torso, recurrent_size: recurrent, head, action_space: actions, normalization, activation } = description;
    check(description.steps_version === 1, `steps of version ${description.steps_version}`);
    check(torso === "none" && recurrent === 0 && head === "stochastic" && actions.kind === "discrete", "another network");
    this.activation = { tanh: Math.tanh, relu: (x) => Math.max(x, 0), elu: (x) => (x > 0 ? x : Math.expm1(x)) }[activation];
    this.normalization = normalization;
    this.tensors = tensors;
    this.layers = description.hidden_sizes.length + 1;
  }

  normalized(observation) {
    if (this.normalization !== "statistics") return observation;
    const { observation_mean: mean, observation_variance: variance } = this.tensors;
    return observation.map((value, i) => {
      const scaled = (value - mean.values[i]) / Math.sqrt(variance.values[i] + 1e-8);
      return Math.min(10, Math.max(-10, scaled));
    });
  }

  outputs(observation) {
    let x = this.normalized(Array.from(observation));
    for (let layer = 0; layer < this.layers; layer += 1) {
      const { shape: [rows, columns], values } = this.tensors[`actor.${layer}.weight`];
      const bias = this.tensors[`actor.${layer}.bias`].values;
      x = Array.from({ length: rows }, (_, row) => {
        let sum = bias[row];
        for (let column = 0; column < columns; column += 1) sum += values[row * columns + column] * x[column];
        return layer < this.layers - 1 ? this.activation(sum) : sum;
      });
    }
    return x;
  }

  act(observation) {
    const outputs = this.outputs(observation);
    return outputs.indexOf(Math.max(...outputs));
  }
}

// Compares outputs and actions with the test vectors of the checkpoint.
function verify(policy, vectors) {
  const { observation, outputs, action } = vectors;
  const [rows, width] = observation.shape;
  const choices = outputs.shape[1];
  let largest = 0;
  for (let row = 0; row < rows; row += 1) {
    const found = policy.outputs(observation.values.subarray(row * width, (row + 1) * width));
    const expected = outputs.values.subarray(row * choices, (row + 1) * choices);
    found.forEach((value, i) => {
      largest = Math.max(largest, Math.abs(value - expected[i]));
    });
    const [best, second] = Array.from(expected).sort((a, b) => b - a);
    const same = found.indexOf(Math.max(...found)) === Number(action.values[row]);
    check(same || best - second <= 1e-4, `test vector ${row}: another action`);
  }
  check(largest < 1e-3, `test vectors: the outputs differ by ${largest}`);
  return rows;
}

async function fetchChampion(tournament) {
  const { tournament_id: tournamentId, champion_manifest_digest: manifestDigest } = tournament;
  const checkpoints = connect("podrace.checkpoint.v1.CheckpointService", tournament.leaderboard_address, { token });
  const names = { tournament_id: tournamentId, manifest_digest: manifestDigest };
  const { manifest } = await call(checkpoints, "GetManifest", names, { seconds: 10 });
  const { parts } = await call(checkpoints, "ListParts", names, { seconds: 10 });
  const [description] = Object.values(manifest.policies);
  const read = async (name) => {
    const { part } = parts.find((one) => one.part.name === name);
    return tensorsOf(await readPart(checkpoints, tournamentId, manifestDigest, part.digest));
  };
  // The manifest itself is a part whose digest is the name of the checkpoint.
  await readPart(checkpoints, tournamentId, manifestDigest, manifestDigest);
  const policy = new Policy(description, await read(description.part));
  const rows = verify(policy, await read(description.test_vectors_part));
  console.log(`verified ${parts.length} parts and ${rows} test vectors of ${manifest.agent_id}`);
  return policy;
}

// CartPole-v1 of Gymnasium (Barto, Sutton and Anderson 1983), with its Euler steps of 0.02 s.
function play(policy, most) {
  let [x, v, angle, spin] = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
  for (let step = 1; step <= most; step += 1) {
    const force = policy.act([x, v, angle, spin]) === 1 ? 10 : -10;
    const [sin, cos] = [Math.sin(angle), Math.cos(angle)];
    const push = (force + 0.05 * spin ** 2 * sin) / 1.1;
    const spinChange = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
    const vChange = push - (0.05 * spinChange * cos) / 1.1;
    [x, v, angle, spin] = [x + 0.02 * v, v + 0.02 * vChange, angle + 0.02 * spin, spin + 0.02 * spinChange];
    if (Math.abs(x) > 2.4 || Math.abs(angle) > (12 * Math.PI) / 180) return step;
  }
  return most;
}

async function main() {
  const orchestrator = connect("podrace.orchestrator.v1.OrchestratorService", address, { token });
  const tournament = await follow(orchestrator, await train(orchestrator));
  const policy = await fetchChampion(tournament);
  const returns = Array.from({ length: EPISODES }, () => play(policy, 500));
  const mean = returns.reduce((sum, one) => sum + one, 0) / EPISODES;
  console.log(`mean return of ${EPISODES} episodes: ${mean.toFixed(1)}`);
  check(mean >= SOLVED, `the champion got ${mean}, less than ${SOLVED}`);
  process.exit(0);
}

main().catch((error) => {
  console.error(error.details ?? error.message, error.code ? errorDetails(error) : "");
  process.exit(1);
});
