// Acts with a policy that `podrace serve` serves: plays CartPole-v1 and prints the mean return.
//
//     make -C examples/cpp PROTOS=protos OUT=build/cpp
//     build/cpp/policy_client 127.0.0.1:8001 10 [TOKEN]
#include <grpcpp/grpcpp.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "podrace/policy/v1/policy_service.grpc.pb.h"

namespace pb = podrace::policy::v1;

namespace {

constexpr int kMostSteps = 500;

void Check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// A client of PolicyService; observations and actions are the elements of arrays, little-endian like this machine.
class Policy {
 public:
  Policy(const std::string& address, std::string token)
      : stub_(pb::PolicyService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        token_(std::move(token)) {}

  std::string Describe() {
    grpc::ClientContext context;
    Prepare(context);
    pb::DescribePolicyResponse answer;
    Check(stub_->DescribePolicy(&context, pb::DescribePolicyRequest(), &answer));
    return answer.ShortDebugString().substr(0, 200);
  }

  // The greedy action, one of several.
  std::int64_t Act(const std::array<float, 4>& observation) {
    grpc::ClientContext context;
    Prepare(context);
    pb::ActRequest request;
    request.set_observations(observation.data(), sizeof observation);
    pb::ActResponse answer;
    Check(stub_->Act(&context, request, &answer));
    std::int64_t action = 0;
    if (answer.actions().size() != sizeof action) throw std::runtime_error("the policy does not act on CartPole");
    std::memcpy(&action, answer.actions().data(), sizeof action);
    return action;
  }

 private:
  void Prepare(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    context.set_wait_for_ready(true);
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
  }

  std::unique_ptr<pb::PolicyService::Stub> stub_;
  std::string token_;
};

// CartPole-v1 of Gymnasium (Barto, Sutton and Anderson 1983), with its Euler steps of 0.02 s.
int Play(Policy& policy, std::mt19937& random) {
  std::uniform_real_distribution<double> start(-0.05, 0.05);
  double x = start(random), v = start(random), angle = start(random), spin = start(random);
  for (int step = 1; step <= kMostSteps; ++step) {
    const std::array<float, 4> observation{static_cast<float>(x), static_cast<float>(v), static_cast<float>(angle),
                                           static_cast<float>(spin)};
    const double force = policy.Act(observation) == 1 ? 10.0 : -10.0;
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const double push = (force + 0.05 * spin * spin * sine) / 1.1;
    const double spin_change = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    const double v_change = push - 0.05 * spin_change * cosine / 1.1;
    x += 0.02 * v;
    v += 0.02 * v_change;
    angle += 0.02 * spin;
    spin += 0.02 * spin_change;
    if (std::abs(x) > 2.4 || std::abs(angle) > 12.0 * std::acos(-1.0) / 180.0) return step;
  }
  return kMostSteps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: policy_client ADDRESS EPISODES [TOKEN]\n";
    return 2;
  }
  try {
    Policy policy(argv[1], argc > 3 ? argv[3] : "");
    std::cout << policy.Describe() << "\n";
    std::mt19937 random(1);
    const int episodes = std::stoi(argv[2]);
    double total = 0.0;
    for (int episode = 0; episode < episodes; ++episode) total += Play(policy, random);
    std::cout << "mean return of " << episodes << " episodes: " << total / episodes << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
