// Simulator service in JavaScript: a point on a line must come to rest at 0. Uses only the .proto files of podrace.
//
//     npm install
//     node simulator.js PROTOS [ADDRESS]      (PROTOS: the folder protos/ of podrace; ADDRESS: 127.0.0.1:0)
//
// Prints one line, `serves ADDRESS`. A specification then says
//
//     [environment]
//     id = "grpc://127.0.0.1:50060"
//     [environment.options]
//     id = "point"
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [, , protos, listen = "127.0.0.1:0"] = process.argv;
const definition = loader.loadSync("podrace/simulator/v1/simulator.proto", {
  includeDirs: [path.resolve(protos)],
  keepCase: true,
  longs: Number,
  enums: String,
  oneofs: true,
});
const { podrace } = grpc.loadPackageDefinition(definition);

const MAXIMUM_ENVIRONMENTS = 4096;
const SECONDS_PER_STEP = 0.1;
const BOUND = 3;

// Position and speed; a force between -1 and 1.
const OBSERVATION_SPACE = { kind: "KIND_CONTINUOUS", shape: [2], data_type: "DATA_TYPE_FLOAT32" };
const ACTION_SPACE = { kind: "KIND_CONTINUOUS", shape: [1], data_type: "DATA_TYPE_FLOAT32", low: [-1], high: [1] };

class Refusal extends Error {
  constructor(code, details) {
    super(details);
    this.code = code;
    this.details = details;
  }
}
const refuse = (details, code = grpc.status.INVALID_ARGUMENT) => {
  throw new Refusal(code, details);
};

// Options arrive as a google.protobuf.Struct.
function maximumSteps(id, options) {
  if (id !== "point") refuse(`there is no simulator '${id}' here; there is 'point'`);
  let steps = 100;
  for (const [name, value] of Object.entries(options?.fields ?? {})) {
    if (name !== "max_episode_steps") refuse(`point: unknown option '${name}' (allowed: max_episode_steps)`);
    steps = value.numberValue;
    if (!(Number.isInteger(steps) && steps > 0)) refuse("point: max_episode_steps must be a whole number from 1 on");
  }
  return steps;
}

// Numbers in [0, 1) that depend only on their seed (mulberry32).
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

class Points {
  constructor(count, maximumSteps) {
    this.count = count;
    this.maximumSteps = maximumSteps;
    this.states = new Float32Array(2 * count);
    this.steps = new Uint32Array(count);
  }

  reset(seed) {
    this.random = generator(seed);
    for (let lane = 0; lane < this.count; lane += 1) this.begin(lane);
  }

  begin(lane) {
    this.states[2 * lane] = 2 * this.random() - 1;
    this.states[2 * lane + 1] = 0.2 * this.random() - 0.1;
    this.steps[lane] = 0;
  }

  step(force) {
    const reward = new Float32Array(this.count);
    const terminated = new Uint8Array(this.count);
    const truncated = new Uint8Array(this.count);
    const finalLanes = [];
    const finals = [];
    for (let lane = 0; lane < this.count; lane += 1) {
      const pushed = Math.min(1, Math.max(-1, force[lane]));
      this.states[2 * lane + 1] += SECONDS_PER_STEP * pushed;
      this.states[2 * lane] += SECONDS_PER_STEP * this.states[2 * lane + 1];
      const [position, speed] = this.states.subarray(2 * lane, 2 * lane + 2);
      this.steps[lane] += 1;
      reward[lane] = 1 - position ** 2 - 0.1 * speed ** 2;
      terminated[lane] = Math.abs(position) > BOUND ? 1 : 0;
      truncated[lane] = !terminated[lane] && this.steps[lane] >= this.maximumSteps ? 1 : 0;
      if (terminated[lane] || truncated[lane]) {
        // The last observation of the episode; the lane starts the next episode in the same step.
        finalLanes.push(lane);
        finals.push(position, speed);
        this.begin(lane);
      }
    }
    return { reward, terminated, truncated, finalLanes, finals: Float32Array.from(finals) };
  }
}

const bytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
// Copied, because numbers must be aligned and the bytes of a message are not. Little-endian, like this machine.
const floats = (buffer) => new Float32Array(new Uint8Array(buffer).buffer);

// The state of one stream. A step of 4,096 points fits in one message, so `more` is never needed.
class Stream {
  answer(message) {
    if (message.request !== "open" && !this.points) refuse("a stream begins with open");
    switch (message.request) {
      case "open":
        return this.open(message.open);
      case "reset":
        this.step = 0;
        this.points.reset(message.reset.seed ?? 0);
        return { stepped: { step: 0, observation: bytes(this.points.states) } };
      case "act":
        return this.act(message.act);
      case "report":
        return { reported: {} };
      default:
        return refuse(`a request that is not known here: ${message.request}`);
    }
  }

  open({ id, options, count }) {
    if (this.points) refuse("a stream opens once");
    if (!(count >= 1)) refuse("there must be at least 1 environment");
    if (count > MAXIMUM_ENVIRONMENTS) refuse(`${count} environments are too many`, grpc.status.RESOURCE_EXHAUSTED);
    this.points = new Points(count, maximumSteps(id, options));
    return { opened: { observation_space: OBSERVATION_SPACE, action_space: ACTION_SPACE } };
  }

  act({ step, action, more }) {
    if (step !== this.step + 1) refuse(`step ${step} cannot follow step ${this.step}`);
    if (more || action.length !== 4 * this.points.count) refuse(`the action has ${action.length} bytes`);
    this.step = step;
    const { reward, terminated, truncated, finalLanes, finals } = this.points.step(floats(action));
    return {
      stepped: {
        step,
        observation: bytes(this.points.states),
        reward: bytes(reward),
        terminated: bytes(terminated),
        truncated: bytes(truncated),
        final_lanes: finalLanes,
        final_observation: bytes(finals),
      },
    };
  }
}

const service = {
  GetSimulator(call, callback) {
    try {
      maximumSteps(call.request.id, call.request.options);
      callback(null, {
        observation_space: OBSERVATION_SPACE,
        action_space: ACTION_SPACE,
        maximum_environments: MAXIMUM_ENVIRONMENTS,
        reproducible: true,
      });
    } catch (error) {
      callback(error);
    }
  },
  StreamSteps(call) {
    const stream = new Stream();
    call.on("data", (message) => {
      try {
        call.write(stream.answer(message));
      } catch (error) {
        call.emit("error", error);
      }
    });
    call.on("end", () => call.end());
  },
};

const server = new grpc.Server();
server.addService(podrace.simulator.v1.SimulatorService.service, service);
server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(`serves ${listen.startsWith("unix:") ? listen : `${listen.slice(0, listen.lastIndexOf(":"))}:${port}`}`);
});
