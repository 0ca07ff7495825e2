// Generator plugin: proposes children of the best candidate, each with another discount.
//
//     make -C examples/cpp PROTOS=protos OUT=build/cpp
//     build/cpp/generator [127.0.0.1:0]
//
// Prints one line, `serves ADDRESS`. A specification then says
//
//     [evolution]
//     generator = "grpc://127.0.0.1:50071"
#include <grpcpp/grpcpp.h>

#include <array>
#include <iostream>
#include <memory>
#include <string>

#include "podrace/evolution/v1/evolution.grpc.pb.h"

namespace pb = podrace::evolution::v1;

namespace {

constexpr std::array<double, 4> kDiscounts{0.97, 0.98, 0.99, 0.995};

// JudgeCandidate stays UNIMPLEMENTED.
class Service final : public pb::EvolutionService::Service {
  grpc::Status ProposeAgent(grpc::ServerContext*, const pb::ProposeAgentRequest* request,
                            pb::ProposeAgentResponse* answer) override {
    if (request->candidates().empty()) {
      answer->mutable_fresh();
      answer->set_reason("no candidate has been scored yet");
      return grpc::Status::OK;
    }
    pb::ChildProposal& child = *answer->mutable_child();
    child.set_candidate_id(request->candidates(0).candidate().candidate_id());
    // All randomness comes from the seed of the request, so a tournament can be repeated.
    const double discount = kDiscounts[request->seed() % kDiscounts.size()];
    (*child.mutable_hyperparameters()->mutable_fields())["discount"].set_number_value(discount);
    answer->set_reason("the best of " + std::to_string(request->candidates_size()));
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
