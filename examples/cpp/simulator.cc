// Simulator service: a point on a line must come to rest at 0.
//
//     make -C examples/cpp PROTOS=protos OUT=build/cpp
//     build/cpp/simulator [127.0.0.1:0]
//
// Prints one line, `serves ADDRESS`. A specification then says
//
//     [environment]
//     id = "grpc://127.0.0.1:50060"
//     [environment.options]
//     id = "point"
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "podrace/simulator/v1/simulator.grpc.pb.h"

namespace pb = podrace::simulator::v1;
namespace pod = podrace::agentpod::v1;

namespace {

constexpr std::uint32_t kMostEnvironments = 4096;
constexpr float kSecondsPerStep = 0.1F, kBound = 3.0F;

grpc::Status Refusal(const std::string& why, grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
  return grpc::Status(code, why);
}

// Position and speed; a force between -1 and 1.
template <typename Message>
void DescribeSpaces(Message& message) {
  pod::Space& seen = *message.mutable_observation_space();
  seen.set_kind(pod::Space::KIND_CONTINUOUS);
  seen.add_shape(2);
  seen.set_data_type(podrace::tensor::v1::DATA_TYPE_FLOAT32);
  pod::Space& acted = *message.mutable_action_space();
  acted = seen;
  acted.set_shape(0, 1);
  acted.add_low(-1.0);
  acted.add_high(1.0);
}

grpc::Status ReadSteps(const std::string& id, const google::protobuf::Struct& options, int& steps) {
  if (id != "point") return Refusal("there is no simulator '" + id + "' here; there is 'point'");
  steps = 100;
  for (const auto& [name, value] : options.fields()) {
    if (name != "max_episode_steps") return Refusal("point: unknown option '" + name + "' (allowed: max_episode_steps)");
    const double given = value.number_value();
    if (!(given >= 1.0 && given <= 1e9 && given == std::floor(given)))
      return Refusal("point: max_episode_steps must be a whole number from 1 on");
    steps = static_cast<int>(given);
  }
  return grpc::Status::OK;
}

// Little-endian, like this machine.
template <typename Number>
std::string Bytes(const std::vector<Number>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

class Points {
 public:
  Points(std::uint32_t count, int most_steps) : most_steps_(most_steps), states_(2 * count), steps_(count) {}

  std::size_t count() const { return steps_.size(); }

  void Reset(std::uint64_t seed, pb::StreamStepsResponse::Stepped& stepped) {
    random_.seed(seed);
    for (std::size_t lane = 0; lane < count(); ++lane) Begin(lane);
    stepped.set_step(0);
    stepped.set_observation(Bytes(states_));
  }

  void Step(const std::vector<float>& force, pb::StreamStepsResponse::Stepped& stepped) {
    std::vector<float> reward(count()), finals;
    std::vector<std::uint8_t> terminated(count()), truncated(count());
    for (std::size_t lane = 0; lane < count(); ++lane) {
      float &position = states_[2 * lane], &speed = states_[2 * lane + 1];
      speed += kSecondsPerStep * std::clamp(force[lane], -1.0F, 1.0F);
      position += kSecondsPerStep * speed;
      reward[lane] = 1.0F - position * position - 0.1F * speed * speed;
      terminated[lane] = std::abs(position) > kBound;
      truncated[lane] = !terminated[lane] && ++steps_[lane] >= most_steps_;
      if (!terminated[lane] && !truncated[lane]) continue;
      // The last observation of the episode; the lane starts the next episode in the same step.
      stepped.add_final_lanes(static_cast<std::uint32_t>(lane));
      finals.insert(finals.end(), {position, speed});
      Begin(lane);
    }
    stepped.set_observation(Bytes(states_));
    stepped.set_reward(Bytes(reward));
    stepped.set_terminated(Bytes(terminated));
    stepped.set_truncated(Bytes(truncated));
    stepped.set_final_observation(Bytes(finals));
  }

 private:
  void Begin(std::size_t lane) {
    std::uniform_real_distribution<float> start(-1.0F, 1.0F);
    states_[2 * lane] = start(random_);
    states_[2 * lane + 1] = 0.1F * start(random_);
    steps_[lane] = 0;
  }

  int most_steps_;
  std::vector<float> states_;
  std::vector<int> steps_;
  std::mt19937_64 random_;
};

// The state of one stream. A step of 4,096 points fits in one message, so `more` is never needed.
class Stream {
 public:
  grpc::Status Answer(const pb::StreamStepsRequest& request, pb::StreamStepsResponse& response) {
    if (request.has_open()) return Open(request.open(), response);
    if (!points_) return Refusal("a stream begins with open");
    if (request.has_reset()) {
      step_ = 0;
      points_->Reset(request.reset().seed(), *response.mutable_stepped());
      reset_ = true;
      return grpc::Status::OK;
    }
    if (request.has_act()) return Act(request.act(), *response.mutable_stepped());
    if (!request.has_report()) return Refusal("a request that is not known here");
    response.mutable_reported();
    return grpc::Status::OK;
  }

 private:
  grpc::Status Open(const pb::StreamStepsRequest::Open& open, pb::StreamStepsResponse& response) {
    if (points_) return Refusal("a stream opens once");
    if (open.count() < 1) return Refusal("there must be at least 1 environment");
    if (open.count() > kMostEnvironments)
      return Refusal(std::to_string(open.count()) + " environments are too many", grpc::StatusCode::RESOURCE_EXHAUSTED);
    int steps = 0;
    if (const grpc::Status status = ReadSteps(open.id(), open.options(), steps); !status.ok()) return status;
    points_ = std::make_unique<Points>(open.count(), steps);
    DescribeSpaces(*response.mutable_opened());
    return grpc::Status::OK;
  }

  grpc::Status Act(const pb::StreamStepsRequest::Act& act, pb::StreamStepsResponse::Stepped& stepped) {
    if (!reset_ || act.step() != step_ + 1) return Refusal("step " + std::to_string(act.step()) + " cannot follow");
    if (act.more() || act.action().size() != sizeof(float) * points_->count())
      return Refusal("the action has " + std::to_string(act.action().size()) + " bytes");
    std::vector<float> force(points_->count());
    std::memcpy(force.data(), act.action().data(), act.action().size());
    stepped.set_step(step_ = act.step());
    points_->Step(force, stepped);
    return grpc::Status::OK;
  }

  std::unique_ptr<Points> points_;
  std::uint64_t step_ = 0;
  bool reset_ = false;
};

class Service final : public pb::SimulatorService::Service {
  grpc::Status GetSimulator(grpc::ServerContext*, const pb::GetSimulatorRequest* request,
                            pb::GetSimulatorResponse* response) override {
    int steps = 0;
    if (const grpc::Status status = ReadSteps(request->id(), request->options(), steps); !status.ok()) return status;
    DescribeSpaces(*response);
    response->set_maximum_environments(kMostEnvironments);
    response->set_reproducible(true);
    return grpc::Status::OK;
  }

  grpc::Status StreamSteps(
      grpc::ServerContext*, grpc::ServerReaderWriter<pb::StreamStepsResponse, pb::StreamStepsRequest>* calls) override {
    Stream stream;
    pb::StreamStepsRequest request;
    while (calls->Read(&request)) {
      pb::StreamStepsResponse response;
      if (const grpc::Status status = stream.Answer(request, response); !status.ok()) return status;
      if (!calls->Write(response)) break;
    }
    return grpc::Status::OK;
  }
};

}  // namespace

int main(int count, char** words) {
  const std::string listen = count > 1 ? words[1] : "127.0.0.1:0";
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) return 1;
  std::cout << "serves " << listen.substr(0, listen.rfind(':')) << ':' << port << std::endl;
  server->Wait();
}
