// Creates a tournament on CartPole, follows it to its end, and prints the best candidates.
//
//     make -C examples/cpp PROTOS=protos OUT=build/cpp
//     build/cpp/client 127.0.0.1:50051
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "podrace/leaderboard/v1/leaderboard.grpc.pb.h"
#include "podrace/orchestrator/v1/orchestrator.grpc.pb.h"

namespace board = podrace::leaderboard::v1;
namespace pb = podrace::orchestrator::v1;
namespace race = podrace::tournament::v1;

namespace {

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

void Prepare(grpc::ClientContext& context, int seconds) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  context.set_wait_for_ready(true);
}

void Check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

pb::CreateTournamentRequest Wanted() {
  pb::CreateTournamentRequest request;
  // A second call with this id returns the tournament of the first.
  request.set_request_id("cpp-" + std::to_string(std::random_device()()));
  race::TournamentSpec& spec = *request.mutable_spec();
  spec.mutable_environment()->set_id("cartpole");
  (*spec.mutable_algorithms())["ppo"];
  spec.mutable_objective()->set_environment_steps(60000);
  spec.mutable_pool()->set_maximum_pods(1);
  spec.mutable_assignment()->set_environment_steps(20000);
  (*request.mutable_labels())["language"] = "cpp";
  return request;
}

bool HasEnded(const race::Tournament& tournament) {
  return tournament.state() == race::TOURNAMENT_STATE_COMPLETED ||
         tournament.state() == race::TOURNAMENT_STATE_CANCELLED || tournament.state() == race::TOURNAMENT_STATE_FAILED;
}

race::Tournament Follow(pb::OrchestratorService::Stub& orchestrator, const std::string& tournament_id) {
  pb::WatchTournamentRequest request;
  request.set_tournament_id(tournament_id);
  for (;;) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const auto watch = orchestrator.WatchTournament(&context, request);
    pb::WatchTournamentResponse update;
    while (watch->Read(&update)) {
      for (const pb::Event& event : update.events()) std::cout << event.kind() << ' ' << event.message() << '\n';
      if (HasEnded(update.tournament())) return update.tournament();
      request.set_resume_token(update.resume_token());
    }
    // After UNAVAILABLE, the next call continues behind the last event.
    if (const grpc::Status status = watch->Finish(); status.error_code() != grpc::StatusCode::UNAVAILABLE) Check(status);
  }
}

void PrintBest(const race::Tournament& tournament) {
  const auto leaderboard = board::LeaderboardService::NewStub(Connect(tournament.leaderboard_address()));
  board::ListCandidatesRequest request;
  request.set_tournament_id(tournament.tournament_id());
  request.set_filter("algorithm = ppo");
  request.set_page_size(3);
  grpc::ClientContext context;
  Prepare(context, 10);
  board::ListCandidatesResponse answer;
  Check(leaderboard->ListCandidates(&context, request, &answer));
  for (const board::Candidate& one : answer.candidates())
    std::cout << one.rank() << ". " << one.agent_id() << ": " << one.score() << " ± " << one.standard_error() << '\n';
}

}  // namespace

int main(int count, char** words) try {
  if (count != 2) throw std::runtime_error("usage: client ORCHESTRATOR");
  const auto orchestrator = pb::OrchestratorService::NewStub(Connect(words[1]));
  grpc::ClientContext context;
  Prepare(context, 10);
  pb::CreateTournamentResponse created;
  Check(orchestrator->CreateTournament(&context, Wanted(), &created));
  const race::Tournament ended = Follow(*orchestrator, created.tournament().tournament_id());
  std::cout << race::TournamentState_Name(ended.state()) << ": " << ended.reason() << '\n';
  PrintBest(ended);
  return ended.state() == race::TOURNAMENT_STATE_COMPLETED ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "client: " << error.what() << '\n';
  return 1;
}
